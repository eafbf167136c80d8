// Package kubelet asks the kubelet which devices it has given to which pods.
//
// In: the kubelet's podresources socket (API v1, gRPC), a deadline. Out: one
// Grant for each device of each container, device plugins and DRA claims alike,
// ids as the kubelet spells them. Never: a connection kept between two
// questions, a watch of the API server, a judgement of which id is what GPU.
//
// To add a field: its number in podresources.proto, `make generate`, its place in
// Grant.
package kubelet

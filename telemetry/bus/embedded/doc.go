// Package embedded is a NATS server in this process, for a laptop, a few bare
// servers, and tests.
//
// In: a store folder, users, where to listen. Out: a running server that
// bus.Connect reaches with or without a socket. Never: part of the node
// binary, a cluster, a listener that nobody asked for.
//
// Guarantees: the settings are those of bus.ServerConfig; Start returns only
// when clients can connect, and says which port is taken.
package embedded

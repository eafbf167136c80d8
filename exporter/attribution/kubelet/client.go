package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Socket is where a kubelet listens unless it was told otherwise.
const Socket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// MaxReply bounds a reply. A node with many CPUs, pods and NUMA zones exceeds
// the library's own 4 MiB.
const MaxReply = 64 << 20

const listMethod = "/v1.PodResourcesLister/List"

// Grant is one device of one container.
type Grant struct {
	Namespace, Pod, Container string
	// Resource is the device plugin's resource, or the driver of a DRA claim.
	Resource string
	// Device is the id as the kubelet has it; of a claim, the device's name in
	// its pool.
	Device string
	// Of a claim alone.
	Claim, Pool, Share string
	CDI                []string
}

// IsClaim says that the device came by a DRA claim.
func (g *Grant) IsClaim() bool { return g.Claim != "" || g.Pool != "" }

// List tells each grant that the kubelet knows now. It connects anew each time:
// a kubelet that restarts leaves a dead socket behind, and to find the new one
// costs less than to follow it.
func List(ctx context.Context, socket string, each func(*Grant)) error {
	if err := reachable(socket); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxReply), grpc.ForceCodec(codec{})))
	if err != nil {
		return fmt.Errorf("kubelet socket %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	var reply ListResponse
	if err := conn.Invoke(ctx, listMethod, &ListRequest{}, &reply); err != nil {
		return explain(socket, err)
	}
	for _, p := range reply.GetPods() {
		p.grants(each)
	}
	return nil
}

// reachable tells what can be told apart before the library makes one error of it.
func reachable(socket string) error {
	info, err := os.Stat(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("kubelet socket %s is not there: no kubelet runs, or the folder is not mounted here: %w", socket, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("kubelet socket %s may not be seen by this user; run with group access to it: %w", socket, err)
	case err != nil:
		return fmt.Errorf("kubelet socket: %w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("kubelet socket %s is no socket", socket)
	case len(socket) >= len(syscall.RawSockaddrUnix{}.Path):
		return fmt.Errorf("kubelet socket %s: a socket's path has %d bytes at most", socket, len(syscall.RawSockaddrUnix{}.Path)-1)
	}
	return nil
}

func explain(socket string, err error) error {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("kubelet socket %s does not answer in time: %w", socket, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("kubelet socket %s: the reply exceeds %d MiB: %w", socket, MaxReply>>20, err)
	case codes.Unimplemented:
		return fmt.Errorf("kubelet socket %s does not serve podresources v1, which Kubernetes has from 1.20 on: %w", socket, err)
	}
	return fmt.Errorf("kubelet socket %s: %w", socket, err)
}

func (p *Pod) grants(each func(*Grant)) {
	for _, c := range p.GetContainers() {
		g := Grant{Namespace: p.GetNamespace(), Pod: p.GetName(), Container: c.GetName()}
		for _, d := range c.GetDevices() {
			for _, id := range d.GetIds() {
				g := g
				g.Resource, g.Device = d.GetResource(), id
				each(&g)
			}
		}
		for _, claim := range c.GetClaims() {
			for _, d := range claim.GetDevices() {
				g := g
				g.Resource, g.Device = d.GetDriver(), d.GetDevice()
				g.Claim, g.Pool, g.Share = claim.GetName(), d.GetPool(), d.GetShare()
				for _, cdi := range d.GetCdi() {
					g.CDI = append(g.CDI, cdi.GetName())
				}
				each(&g)
			}
		}
	}
}

// codec leaves out what the schema does not name: a reply is mostly CPUs and
// memory zones.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return proto.Marshal(m)
}

func (codec) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
}

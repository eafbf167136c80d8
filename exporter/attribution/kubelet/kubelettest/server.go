// Package kubelettest is a kubelet's podresources socket for tests: it speaks
// the real gRPC.
//
// In: the pods to tell of. Out: a socket. Never: part of a binary.
package kubelettest

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/evenkeel-gpu/evenkeel/exporter/attribution/kubelet"
)

// Server is a kubelet's socket.
type Server struct {
	Socket string
	// Asked counts questions.
	Asked atomic.Int64

	mu    sync.Mutex
	reply *kubelet.ListResponse
	err   error
	block chan struct{}
	grpc  *grpc.Server
}

// New starts one that knows no pods.
func New(t *testing.T) *Server {
	t.Helper()
	s := &Server{Socket: filepath.Join(t.TempDir(), "kubelet.sock"), reply: &kubelet.ListResponse{}}
	s.Start(t)
	t.Cleanup(s.Stop)
	return s
}

// Start listens, as after Stop.
func (s *Server) Start(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s.grpc = grpc.NewServer(grpc.MaxSendMsgSize(kubelet.MaxReply * 2))
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: "v1.PodResourcesLister",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "List", Handler: func(_ any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := read(&kubelet.ListRequest{}); err != nil {
				return nil, err
			}
			return s.list(ctx)
		}}},
	}, s)
	go func(g *grpc.Server) { _ = g.Serve(ln) }(s.grpc)
}

// Stop ends it and takes the socket away.
func (s *Server) Stop() {
	s.Release()
	s.grpc.Stop()
}

func (s *Server) list(ctx context.Context) (*kubelet.ListResponse, error) {
	s.Asked.Add(1)
	s.mu.Lock()
	reply, err, block := s.reply, s.err, s.block
	s.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return reply, err
}

// Says sets what it tells from now on.
func (s *Server) Says(pods ...*kubelet.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply, s.err = &kubelet.ListResponse{}, nil
	s.reply.SetPods(pods)
}

// Fails has it refuse.
func (s *Server) Fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Hang has it accept questions and not answer them, until Release.
func (s *Server) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.block == nil {
		s.block = make(chan struct{})
	}
}

// Release answers what waits.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.block != nil {
		close(s.block)
		s.block = nil
	}
}

// Pod is a pod with one container, whose devices are of one resource.
func Pod(namespace, name, container, resource string, ids ...string) *kubelet.Pod {
	d := &kubelet.Devices{}
	d.SetResource(resource)
	d.SetIds(ids)
	c := &kubelet.Container{}
	c.SetName(container)
	c.SetDevices([]*kubelet.Devices{d})
	p := &kubelet.Pod{}
	p.SetNamespace(namespace)
	p.SetName(name)
	p.SetContainers([]*kubelet.Container{c})
	return p
}

// Claims is a pod with one container that has devices by one DRA claim.
func Claims(namespace, name, container, claim, driver, pool string, devices ...string) *kubelet.Pod {
	p := Pod(namespace, name, container, "")
	k := &kubelet.Claim{}
	k.SetName(claim)
	k.SetNamespace(namespace)
	var list []*kubelet.ClaimDevice
	for _, device := range devices {
		d := &kubelet.ClaimDevice{}
		d.SetDriver(driver)
		d.SetPool(pool)
		d.SetDevice(device)
		list = append(list, d)
	}
	k.SetDevices(list)
	p.GetContainers()[0].SetDevices(nil)
	p.GetContainers()[0].SetClaims([]*kubelet.Claim{k})
	return p
}

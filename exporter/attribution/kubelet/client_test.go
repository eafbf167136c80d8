package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/evenkeel-gpu/evenkeel/exporter/attribution/kubelet"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution/kubelet/kubelettest"
)

func list(t *testing.T, socket string) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []string
	err := kubelet.List(ctx, socket, func(g *kubelet.Grant) {
		got = append(got, fmt.Sprintf("%s/%s/%s %s %s %s %s", g.Namespace, g.Pod, g.Container, g.Resource, g.Device, g.Claim, g.Pool))
	})
	return got, err
}

func TestGrantsOfPluginsAndClaims(t *testing.T) {
	s := kubelettest.New(t)
	s.Says(
		kubelettest.Pod("ml", "train-0", "main", "nvidia.com/gpu", "GPU-1", "GPU-2::3"),
		kubelettest.Claims("ml", "infer", "serve", "one-gpu", "gpu.nvidia.com", "node-1", "gpu-0", "gpu-1-mig-1g10gb-19-2"),
		kubelettest.Pod("kube-system", "dns", "dns", ""),
	)
	got, err := list(t, s.Socket)
	want := []string{
		"ml/train-0/main nvidia.com/gpu GPU-1  ", "ml/train-0/main nvidia.com/gpu GPU-2::3  ",
		"ml/infer/serve gpu.nvidia.com gpu-0 one-gpu node-1", "ml/infer/serve gpu.nvidia.com gpu-1-mig-1g10gb-19-2 one-gpu node-1",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// A reply above the library's 4 MiB is whole, and what we do not read of it is
// not kept.
func TestReplyAboveFourMiB(t *testing.T) {
	s := kubelettest.New(t)
	var pods []*kubelet.Pod
	for i := range 250 {
		p := kubelettest.Pod("ml", fmt.Sprintf("pod-%d", i), "main", "nvidia.com/gpu", fmt.Sprintf("GPU-%d", i))
		// Field 5 of the kubelet's pod, its memory zones, is none of ours.
		p.ProtoReflect().SetUnknown(append([]byte{5<<3 | 2, 0xa0, 0x9c, 0x01}, make([]byte, 20000)...))
		pods = append(pods, p)
	}
	whole := &kubelet.ListResponse{}
	whole.SetPods(pods)
	if size := proto.Size(whole); size < 4<<20 {
		t.Fatalf("the reply has %d bytes", size)
	}
	s.Says(pods...)
	got, err := list(t, s.Socket)
	if err != nil || len(got) != len(pods) {
		t.Fatalf("%d grants, %v; want %d", len(got), err, len(pods))
	}
}

// Each way in which a socket can be of no use says what to do.
func TestDeadSocketSaysWhy(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refusing := filepath.Join(dir, "refusing")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: refusing})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close() // what a killed kubelet leaves behind
	garbage := filepath.Join(dir, "garbage")
	other, err := net.Listen("unix", garbage)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-nonsense\r\n"))
			_ = c.Close()
		}
	}()
	refuses := kubelettest.New(t)
	refuses.Fails(status.Error(codes.Internal, "checkpoint corrupt"))
	unknown := kubelettest.New(t)
	unknown.Fails(status.Error(codes.Unimplemented, "unknown service"))
	for socket, want := range map[string]string{
		filepath.Join(dir, "none"): "is not there", plain: "is no socket", refusing: "connection refused",
		garbage: "kubelet socket", refuses.Socket: "checkpoint corrupt", unknown.Socket: "podresources v1",
	} {
		if got, err := list(t, socket); err == nil || !strings.Contains(err.Error(), want) || len(got) != 0 {
			t.Errorf("%s: %v, %v; want %q", socket, got, err, want)
		}
	}
}

// A kubelet that accepts and does not answer costs no more than the deadline.
func TestSlowSocketEndsWithItsDeadline(t *testing.T) {
	s := kubelettest.New(t)
	s.Hang()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- kubelet.List(ctx, s.Socket, func(*kubelet.Grant) { t.Error("a grant") })
	}()
	for s.Asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "does not answer in time") || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on")
	}
}

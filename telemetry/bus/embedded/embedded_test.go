package embedded_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

func TestTakenPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: port})
	if err == nil {
		s.Shutdown()
		t.Fatal("started on a taken port")
	}
	if want := fmt.Sprintf("port %d on 127.0.0.1 is taken", port); !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want it to say %q", err, want)
	}
}

func TestRefusals(t *testing.T) {
	for name, o := range map[string]embedded.Options{
		"no store folder":       {},
		"open to all":           {StoreDir: t.TempDir(), Host: "0.0.0.0", Port: embedded.Random},
		"unknown user":          {StoreDir: t.TempDir(), Users: []bus.User{{Name: "root", Password: "p"}}},
		"user without a secret": {StoreDir: t.TempDir(), Users: []bus.User{{Name: bus.UserReader}}},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := embedded.Start(o); err == nil {
				s.Shutdown()
				t.Error("started")
			}
		})
	}
}

func TestOneServerToAFolder(t *testing.T) {
	dir := t.TempDir()
	first, err := embedded.Start(embedded.Options{StoreDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if first.URL() != "" {
		t.Errorf("listens on %s; nobody asked for that", first.URL())
	}
	if second, err := embedded.Start(embedded.Options{StoreDir: dir}); err == nil {
		second.Shutdown()
		t.Error("a second server took the folder of the first")
	}
	first.Shutdown()
	again, err := embedded.Start(embedded.Options{StoreDir: dir})
	if err != nil {
		t.Fatalf("after shutdown: %v", err)
	}
	again.Shutdown()
}

func TestNKeyUser(t *testing.T) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, Users: []bus.User{{Name: bus.UserCollector, NKey: public}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	c, err := bus.Connect(bus.Options{URLs: []string{s.URL()}, User: bus.UserCollector, NKeySeedFile: writeSeed(t, seed)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	// Its rights came with the key.
	if err := c.EnsureStreams(ctx, bus.DefaultStreams()); err != nil {
		t.Fatal(err)
	}
	_ = c.PublishFrame("node1", []byte("not the collector's to send"))
	for end := time.Now().Add(10 * time.Second); c.Stats().AsyncErrors[bus.ErrorPermission] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a frame from the collector was not refused")
		}
	}
}

func writeSeed(t *testing.T, seed []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "user.nk")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

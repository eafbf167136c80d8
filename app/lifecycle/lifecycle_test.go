package lifecycle

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"
)

// A process ends at once although somebody listens to a stream, and what the
// stream's request hangs on ends with it.
func TestStreamsEndWithTheProcess(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	p := New(ctx)
	ln, err := Listen("test", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Serve("test", ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("open\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	ended := make(chan error, 1)
	go func() { ended <- p.Run() }()
	resp, err := http.Get("http://" + ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("%q, %v", line, err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the process waits for its stream")
	}
}

func TestFirstErrorEndsAll(t *testing.T) {
	p := New(t.Context())
	other := make(chan struct{})
	p.Add("one", func(ctx context.Context) error { <-ctx.Done(); close(other); return ctx.Err() })
	p.Add("two", func(context.Context) error { return errors.New("broken") })
	if err := p.Run(); err == nil || err.Error() != "two: broken" {
		t.Errorf("ended with %v", err)
	}
	<-other
}

func TestTakenAddressIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	want := "page: " + ln.Addr().String() + " is taken by another process; stop it or choose another address, by --listen or `listen` in the file"
	if _, err := Listen("page", ln.Addr().String()); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

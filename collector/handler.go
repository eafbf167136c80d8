package collector

import (
	"bytes"
	"io"
	"net/http"
)

// Handler serves /metrics, /-/healthy and /-/ready.
func (c *Collector) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", newScraping(c))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if !c.ready.at(c.opts.Now()) {
			answer(w, http.StatusServiceUnavailable, "not ready: no full tick received since the start")
			return
		}
		if !c.Active() {
			answer(w, http.StatusOK, "ready, as a standby: another collector speaks for partitions "+c.opts.Partitions.String()+", or none does")
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	return mux
}

// whole writes an answer only once it is complete: a scrape holds the tree of
// families while it encodes, and a client that does not read must not keep the
// others from it.
func whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &buffered{ResponseWriter: w, code: http.StatusOK}
		h.ServeHTTP(b, r)
		w.WriteHeader(b.code)
		_, _ = b.body.WriteTo(w)
	})
}

// buffered keeps status and body back.
type buffered struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (b *buffered) WriteHeader(code int) { b.code = code }

func (b *buffered) Write(p []byte) (int, error) { return b.body.Write(p) }

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n")
}

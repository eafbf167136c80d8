package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed dist
var dist embed.FS

//go:embed openapi.yaml
var openapiYAML []byte

// page is the bundle in memory, each file with its compressed form.
type page map[string]asset

type asset struct {
	body, zipped []byte
	kind, etag   string
}

var assetKinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// newPage reads the embedded bundle. What fails here fails in every build, so
// a test and not a caller sees to it.
func newPage() page {
	p := page{}
	err := fs.WalkDir(dist, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		a := asset{body: body, kind: assetKinds[path.Ext(name)], etag: `"` + hex.EncodeToString(sum[:12]) + `"`}
		var z bytes.Buffer
		zw := gzip.NewWriter(&z)
		if _, err := zw.Write(body); err != nil {
			return err
		}
		if err := zw.Close(); err != nil {
			return err
		}
		a.zipped = z.Bytes()
		p["/"+strings.TrimPrefix(name, "dist/")] = a
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("the embedded page cannot be read: %v", err))
	}
	p["/"] = p["/index.html"]
	return p
}

func (p page) serve(w http.ResponseWriter, r *http.Request) error {
	a, ok := p[r.URL.Path]
	if !ok {
		return problem(http.StatusNotFound, "not_found", "there is no %s; the page is at /, the API under %s/", r.URL.Path, Prefix)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return methodNotAllowed([]string{http.MethodGet})(w, r)
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "no-cache") // asked again each time, answered by its tag
	h.Set("Vary", "Accept-Encoding")
	tag, body := a.etag, a.body
	if takesGzip(r) {
		tag, body = strings.TrimSuffix(tag, `"`)+`-z"`, a.zipped
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = w.Write(body)
	return nil
}

func (s *server) openapi(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(openapiYAML)
	return nil
}

package ui

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Error is the body of every answer that is not a success.
type Error struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail says what is wrong and what to do. Code is for programs.
type ErrorDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// failure is an error with its HTTP status.
type failure struct {
	status int
	ErrorDetail
}

func (f *failure) Error() string { return f.Message }

func problem(status int, code, format string, args ...any) error {
	return &failure{status, ErrorDetail{code, fmt.Sprintf(format, args...)}}
}

// wrap turns a route's error into the one form that errors have.
func (s *server) wrap(serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := serve(w, r)
		if err == nil {
			return
		}
		var f *failure
		if !errors.As(err, &f) {
			s.Log.Error("request failed", "path", r.URL.Path, "err", err)
			f = &failure{http.StatusInternalServerError, ErrorDetail{"internal", "this is a fault of the server; its log has the cause"}}
		}
		if err := respond(w, r, f.status, Error{f.ErrorDetail}); err != nil {
			s.Log.Error("cannot write an error", "path", r.URL.Path, "err", err)
		}
	})
}

// compressFrom is the size from which an answer is worth compressing.
const compressFrom = 4 << 10

// respond writes v as JSON.
func respond(w http.ResponseWriter, r *http.Request, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	return respondBody(w, r, status, body, "")
}

// tagSeed makes tags of answers; those of another process never match.
var tagSeed = maphash.MakeSeed()

// respondBody writes JSON, compressed if it is large and the client takes it.
// An answer that the client has already is not sent again: tag says which it
// is, made from the body if empty. A write that fails means that the client has
// gone, which is no error here.
func respondBody(w http.ResponseWriter, r *http.Request, status int, body []byte, tag string) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Add("Vary", "Accept-Encoding")
	zip := len(body) >= compressFrom && takesGzip(r)
	if status == http.StatusOK && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		if tag == "" {
			tag = strconv.FormatUint(maphash.Bytes(tagSeed, body), 36)
		}
		if notModified(w, r, tag, zip) {
			return nil
		}
	} else {
		h.Set("Cache-Control", "no-store")
	}
	if !zip {
		h.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body)
		return nil
	}
	h.Set("Content-Encoding", "gzip")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	_, _ = z.Write(body)
	_ = z.Close()
	return nil
}

// notModified tags an answer, and answers that the client has it if it does.
// Everything may be kept and must be asked for again: it is of now.
func notModified(w http.ResponseWriter, r *http.Request, tag string, zip bool) bool {
	if zip {
		tag += "-z"
	}
	tag = `"` + tag + `"`
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	for have := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if have = strings.TrimPrefix(strings.TrimSpace(have), "W/"); have == tag || have == "*" {
			w.Header().Del("Content-Type")
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	return false
}

func takesGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" {
			q = strings.ReplaceAll(q, " ", "")
			return q != "q=0" && !strings.HasPrefix(q, "q=0.0")
		}
	}
	return false
}

// respondText writes text for a person.
func respondText(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text)
}

// mostQueryBytes bounds the parameters of a request.
const mostQueryBytes = 8 << 10

// query reads the parameters of a request and refuses those it does not know,
// so that a misspelt filter never shows everything.
func query(r *http.Request, known ...string) (url.Values, error) {
	if len(r.URL.RawQuery) > mostQueryBytes {
		return nil, problem(http.StatusRequestURITooLong, "too_large", "the query is above %d bytes; ask for less at once", mostQueryBytes)
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problem(http.StatusBadRequest, "bad_parameter", "the query cannot be read: %v", err)
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return nil, problem(http.StatusBadRequest, "bad_parameter", "%s takes no parameters, %q is given", r.URL.Path, name)
			}
			return nil, problem(http.StatusBadRequest, "bad_parameter", "parameter %q is not known; there are %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return nil, problem(http.StatusBadRequest, "bad_parameter", "parameter %q is given %d times; give it once", name, len(values))
		}
	}
	return q, nil
}

// limitOr reads the parameter limit.
func limitOr(q url.Values, otherwise, most int) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, problem(http.StatusBadRequest, "bad_parameter", "limit %q: give a whole number from 1 to %d", text, most)
	}
	return n, nil
}

// oneOf refuses a value that is none of those given; empty is allowed.
func oneOf(name, value string, allowed []string) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return problem(http.StatusBadRequest, "bad_parameter", "%s %q is none of %s", name, value, strings.Join(allowed, ", "))
}

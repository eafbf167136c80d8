package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// APIVersion is the version that every file names.
const APIVersion = "evenkeel/v1"

// Head is the start of every file: what it is, in which version.
type Head struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
}

// File is a configuration with its own checks.
type File interface {
	// Validate returns everything that is wrong, in words that say what to do.
	Validate() error
}

// Load reads path into dst, which holds the defaults. A missing path is an
// error; an empty one leaves the defaults.
func Load(path, kind string, dst File) error {
	if path == "" {
		return dst.Validate()
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, kind, data, dst)
}

// Parse decodes data strictly: one document, the right kind, no unknown or
// repeated keys. name stands for the file in errors.
func Parse(name, kind string, data []byte, dst File) error {
	if err := checkHead(name, kind, data); err != nil {
		return err
	}
	if err := Decode(name, data, dst); err != nil {
		return err
	}
	if err := dst.Validate(); err != nil {
		return located(name, err)
	}
	return nil
}

// located puts the file before every fault, and its line where it is known.
func located(name string, err error) error {
	lines := strings.Split(err.Error(), "\n")
	for i, l := range lines {
		if m := startRE.FindStringSubmatch(l); m != nil {
			lines[i] = name + ":" + m[1] + ": " + l[len(m[0]):]
		} else {
			lines[i] = name + ": " + l
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

func checkHead(name, kind string, data []byte) error {
	head, err := HeadOf(name, data)
	switch {
	case err != nil:
		return err
	case head.APIVersion != APIVersion:
		return fmt.Errorf("%s: apiVersion is %q, want %q as the first line", name, head.APIVersion, APIVersion)
	case head.Kind != kind:
		return fmt.Errorf("%s: kind is %q, want %q", name, head.Kind, kind)
	}
	return nil
}

// HeadOf reads only the start of a file.
func HeadOf(name string, data []byte) (Head, error) {
	var h Head
	if err := yaml.Unmarshal(data, &h); err != nil {
		return h, tidy(name, err, nil)
	}
	return h, nil
}

// Decode decodes one YAML document strictly into dst.
func Decode(name string, data []byte, dst any) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(dst); err != nil && !errors.Is(err, io.EOF) {
		return tidy(name, err, dst)
	}
	var more any
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document; split the file", name)
	}
	return nil
}

var (
	startRE   = regexp.MustCompile(`^line (\d+): `)
	lineRE    = regexp.MustCompile(`line (\d+): `)
	unknownRE = regexp.MustCompile(`field (\S+) not found in type \S+`)
)

// tidy turns the decoder's errors into file:line: lines and names the keys
// that an unknown one may have meant.
func tidy(name string, err error, dst any) error {
	var typed *yaml.TypeError
	lines := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	if errors.As(err, &typed) {
		lines = typed.Errors
	}
	var out []string
	for _, l := range lines {
		at := name
		if m := lineRE.FindStringSubmatch(l); m != nil {
			at, l = name+":"+m[1], strings.Replace(l, m[0], "", 1)
		}
		if m := unknownRE.FindStringSubmatch(l); m != nil {
			l = fmt.Sprintf("unknown key %q", m[1])
			if near := nearest(m[1], keysOf(dst)); near != "" {
				l += fmt.Sprintf("; did you mean %q?", near)
			}
		}
		out = append(out, at+": "+l)
	}
	return errors.New(strings.Join(out, "\n"))
}

// keysOf lists every key anywhere in the configuration.
func keysOf(dst any) []string {
	var keys []string
	var walk func(reflect.Type)
	seen := map[reflect.Type]bool{}
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			f := t.Field(i)
			if k, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); k != "" {
				keys = append(keys, k)
			}
			walk(f.Type)
		}
	}
	if dst != nil {
		walk(reflect.TypeOf(dst))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// nearest is the known key closest to a misspelt one, if one is close.
func nearest(key string, known []string) string {
	best, at := 3, ""
	for _, k := range known {
		if d := distance(key, k); d < best {
			best, at = d, k
		}
	}
	return at
}

// distance is the number of single-letter edits between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diag
			if a[i-1] != b[j-1] {
				cost++
			}
			diag = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

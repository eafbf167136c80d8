package telemetry

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestWireIsNotBroken compares every field of every message with wire.lock.
// A line may be added; one that is there may never change or go, since nodes
// and collectors of different versions talk to each other.
func TestWireIsNotBroken(t *testing.T) {
	var now []string
	for _, f := range []protoreflect.FileDescriptor{File_frame_proto, File_observation_proto} {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for j := range m.Fields().Len() {
				d := m.Fields().Get(j)
				now = append(now, fmt.Sprintf("proto %s %d %s %s %s", m.Name(), d.Number(), d.Name(), d.Kind(), d.Cardinality()))
			}
		}
		for i := range f.Enums().Len() {
			e := f.Enums().Get(i)
			for j := range e.Values().Len() {
				v := e.Values().Get(j)
				now = append(now, fmt.Sprintf("enum %s %d %s", e.Name(), v.Number(), v.Name()))
			}
		}
	}
	seen := map[reflect.Type]bool{}
	for _, v := range []any{Event{}, Inventory{}, Envelope{}, Order{}, Receipt{}, Record{}} {
		now = append(now, jsonFields(reflect.TypeOf(v), seen)...)
	}
	for _, r := range Catalog {
		for _, s := range r.Series {
			now = append(now, fmt.Sprintf("id %d %s %s %g", s.ID, r.Name, r.Wire.Kind, r.Wire.Scale))
		}
	}
	slices.Sort(now)
	const path = "wire.lock"
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	locked := strings.Split(strings.TrimSpace(string(lock)), "\n")
	for _, l := range locked {
		if !slices.Contains(now, l) {
			t.Errorf("broken: %q is on the wire of released versions and is gone or changed", l)
		}
	}
	for _, l := range now {
		if !slices.Contains(locked, l) {
			t.Errorf("new: %q is not in %s; run `go test ./telemetry -run Wire -update` and commit", l, path)
		}
	}
}

func jsonFields(t reflect.Type, seen map[reflect.Type]bool) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() == "time" || seen[t] {
		return nil
	}
	seen[t] = true
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, fmt.Sprintf("json %s.%s %s", t.Name(), name, f.Type))
		out = append(out, jsonFields(f.Type, seen)...)
	}
	return out
}

// TestGeneratedIsCurrent runs the generator into another folder and compares.
func TestGeneratedIsCurrent(t *testing.T) {
	out := t.TempDir()
	cmd := exec.Command("go", "run", "./telemetry/gen", "-root", ".", "-out", out)
	cmd.Dir = ".."
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	for _, name := range []string{"telemetry/frame.proto", "telemetry/frame.pb.go", "telemetry/observation.pb.go", "telemetry/catalog_gen.go", "docs/metrics.md", "exporter/attribution/kubelet/podresources.pb.go"} {
		got, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the catalogue gives; run `make generate` and commit", name)
		}
	}
}

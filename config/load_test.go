package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCorpus takes every *.good.yaml and refuses every *.bad.yaml with the
// words of its first line ("# want: …").
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = Check(filepath.Base(path), data)
		if strings.HasSuffix(path, ".good.yaml") {
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		first, _, _ := strings.Cut(string(data), "\n")
		want := strings.TrimPrefix(first, "# want: ")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant: %s", path, err, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"15d": 15 * 24 * time.Hour, "1w2d": 9 * 24 * time.Hour, "1y": 365 * 24 * time.Hour, "1d12h": 36 * time.Hour,
		"1.5s": 1500 * time.Millisecond, "100us": 100 * time.Microsecond, "2h30m": 150 * time.Minute, "0": 0,
	} {
		var v struct{ D Duration }
		if err := Decode("x", []byte("d: "+text), &v); err != nil || time.Duration(v.D) != want {
			t.Errorf("%s: %s, %v", text, time.Duration(v.D), err)
		}
	}
	for _, text := range []string{"15", "1.5d", "2d1w", "d", "15 d", "300y", "''"} {
		var v struct{ D Duration }
		if err := Decode("x", []byte("d: "+text), &v); err == nil || !strings.Contains(err.Error(), "x:1: duration ") {
			t.Errorf("%s: %s, %v", text, time.Duration(v.D), err)
		}
	}
}

func TestDefaultsWithoutAFile(t *testing.T) {
	c := DefaultExporter()
	if err := Load("", "Exporter", c); err != nil || c.Listen != "127.0.0.1:9836" {
		t.Errorf("%+v, %v", c, err)
	}
	if err := Load("testdata/none.yaml", "Exporter", c); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("missing file: %v", err)
	}
	if err := Load("", "Agent", DefaultAgent()); err == nil {
		t.Error("an agent that trusts nobody must say so")
	}
}

func TestSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EVENKEEL_TEST_SECRET", "quiet")
	for s, want := range map[Secret]string{{File: path}: "hush", {Env: "EVENKEEL_TEST_SECRET"}: "quiet", {}: ""} {
		if got, err := s.Read(); err != nil || got != want {
			t.Errorf("%+v: %q, %v", s, got, err)
		}
	}
	for _, s := range []Secret{{File: path, Env: "X"}, {Env: "EVENKEEL_NOT_SET"}, {File: path + "x"}} {
		if _, err := s.Read(); err == nil {
			t.Errorf("%+v: read", s)
		}
	}
}

func FuzzCheck(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, path := range files {
		data, _ := os.ReadFile(path)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = Check("x.yaml", data)
	})
}

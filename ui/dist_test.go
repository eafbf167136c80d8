package ui

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBundleIsOfItsSources builds the page anew and compares.
func TestBundleIsOfItsSources(t *testing.T) {
	if _, err := os.Stat("web/node_modules/esbuild"); err != nil {
		t.Skip("the page's tools are not installed; run `npm ci --prefix ui/web`")
	}
	fresh := filepath.Join(t.TempDir(), "dist")
	if out, err := exec.CommandContext(t.Context(), "node", "web/build.mjs", fresh).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	names, err := os.ReadDir(fresh)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadDir("dist")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != len(committed) {
		t.Errorf("dist has %d files, a fresh build %d", len(committed), len(names))
	}
	for _, n := range names {
		want, err := os.ReadFile(filepath.Join(fresh, n.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join("dist", n.Name())); err != nil || string(got) != string(want) {
			t.Errorf("dist/%s is not what its sources give (%v); run `npm run build --prefix ui/web`", n.Name(), err)
		}
	}
}

// TestBundleStaysHome: the page reaches for nothing but its own origin, and
// its lock file names no host.
func TestBundleStaysHome(t *testing.T) {
	files, err := os.ReadDir("dist")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		body, err := os.ReadFile(filepath.Join("dist", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), "sourceMappingURL") {
			t.Errorf("%s names a source map", f.Name())
		}
		for rest := string(body); f.Name() != "licences.txt"; {
			_, after, ok := strings.Cut(rest, "://")
			if !ok {
				break
			}
			if !strings.HasPrefix(after, "www.w3.org/") { // names of XML vocabularies
				t.Errorf("%s names the host in %.40q", f.Name(), after)
			}
			rest = after
		}
	}
	lock, err := os.ReadFile("web/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(lock), `"resolved"`) {
		t.Error("package-lock.json names where packages were fetched from; keep web/.npmrc and run `npm install --package-lock-only`")
	}
}

// TestTypes checks the page's sources by the strict compiler.
func TestTypes(t *testing.T) {
	if _, err := os.Stat("web/node_modules/typescript"); err != nil {
		t.Skip("the page's tools are not installed; run `npm ci --prefix ui/web`")
	}
	cmd := exec.CommandContext(t.Context(), "node", "node_modules/typescript/bin/tsc", "--noEmit")
	cmd.Dir = "web"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBundleStaysSmall: what a browser fetches before the page is there. It may
// grow when that is worth it, and not by itself.
func TestBundleStaysSmall(t *testing.T) {
	p := newPage()
	for name, most := range map[string]int{"/page.js": 56 << 10, "/page.css": 5 << 10} {
		if got := len(p[name].zipped); got == 0 || got > most {
			t.Errorf("%s has %d bytes compressed, at most %d are allowed", name, got, most)
		}
	}
}

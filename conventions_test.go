// Package evenkeel_test holds the rules of the tree as tests: who may import
// whom, what the node binary may never contain, how packages introduce
// themselves.
package evenkeel_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/evenkeel-gpu/evenkeel"

// Modules that several rows of the table name.
const (
	grpc       = "google.golang.org/grpc"
	protobuf   = "google.golang.org/protobuf"
	nkeys      = "github.com/nats-io/nkeys"
	nats       = "github.com/nats-io/nats.go"
	natsServer = "github.com/nats-io/nats-server"
	client     = "github.com/prometheus/client_golang"
	model      = "github.com/prometheus/client_model" // client_golang's own types
	promdb     = "github.com/prometheus/prometheus"
	promcommon = "github.com/prometheus/common"
	yaml       = "go.yaml.in/yaml"
	sys        = "golang.org/x/sys"
	cobra      = "github.com/spf13/cobra"
)

// imports is the table of ARCHITECTURE.md: what the non-test files of a folder
// may import directly besides the standard library. Ours are given without the
// module path; a name covers the packages below it only where it ends in /….
var imports = map[string][]string{
	"telemetry":                    {protobuf, nkeys},
	"telemetry/gen":                {"telemetry", protobuf, "github.com/bufbuild/protocompile"},
	"telemetry/bus":                {"telemetry", nats, nkeys},
	"telemetry/bus/embedded":       {"telemetry", "telemetry/bus", nats, natsServer, nkeys},
	"nvml":                         {"exporter", "telemetry", "github.com/NVIDIA/go-nvml"},
	"exporter":                     {"telemetry", client, model},
	"exporter/attribution":         {"telemetry", "exporter", "process", "exporter/attribution/kubelet"},
	"exporter/attribution/kubelet": {grpc, protobuf},
	"exporter/host":                {"telemetry", "exporter", "exporter/host/feed", "github.com/influxdata/telegraf", "github.com/influxdata/toml", promcommon, model},
	"exporter/host/feed":           {"telemetry", "exporter"},
	"exporter/spool":               {"telemetry", "exporter", client},
	"process":                      {sys},
	"agent":                        {"telemetry", "process", client, "go.etcd.io/bbolt", sys},
	"cluster":                      {"telemetry"},
	"alerts":                       {"telemetry", promdb, promcommon},
	"collector":                    {"telemetry", "cluster", client, model},
	"collector/store":              {"telemetry", "collector/store/remote", client, model, promdb, promcommon, "github.com/grafana/regexp", "github.com/oklog/ulid"}, // both of Prometheus's interfaces
	"collector/store/remote":       {"telemetry", client, promdb, promcommon},
	"rebalancer":                   {"telemetry", "cluster", client},
	"rebalancer/policy":            {"telemetry", "cluster", "rebalancer"},
	"rebalancer/actuator/node":     {"telemetry", "cluster", "rebalancer"},
	"sim":                          {"telemetry", "cluster", "exporter", "process", "rebalancer", "rebalancer/policy", yaml},
	"bench":                        {"telemetry", "telemetry/bus", "exporter", "sim", protobuf, nkeys},
	"ui":                           {"telemetry", "cluster"},
	"config":                       {"telemetry", yaml, promcommon}, // durations as Prometheus writes them
	// Wiring may import everything; the node's own must stay light, see nodeBan.
	"app": {"*"}, "app/node": {"*"}, "app/connect": {"*"}, "app/lifecycle": {"*"}, "app/crashpoint": {}, "app/cli": {"*"}, "app/command": {cobra},
	"cmd/evenkeel":      {"alerts", "app", "bench", "app/cli", "app/command", "config", cobra},
	"app/host":          {"*"},
	"cmd/evenkeel-host": {"app/host", "app/command", "config", cobra},
	"cmd/evenkeel-node": {"app/node", "app/command", "config", cobra},
	"e2e":               {},
}

// nodeBan is what may never reach a GPU node, with the reason.
var nodeBan = map[string]string{
	"k8s.io/":                        "20 MB and hundreds of packages on every GPU node",
	natsServer:                       "a node is a client of the bus",
	module + "/rebalancer":           "a node decides nothing",
	module + "/collector":            "a node judges nothing",
	module + "/sim":                  "no simulated value may come from a node",
	promdb:                           "no queries on a node",
	module + "/telemetry/bus/embed":  "a node is a client of the bus",
	"github.com/influxdata/telegraf": "9 MiB beside every GPU; evenkeel-host has it",
}

type pkg struct {
	ImportPath, Dir, Name string
	Doc                   string
	Standard              bool
	Imports               []string
	GoFiles, CgoFiles     []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Name,Doc,Standard,Imports,GoFiles,CgoFiles"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v %s", err, stderr(err))
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	return pkgs
}

func stderr(err error) string {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return string(e.Stderr)
	}
	return ""
}

func TestImportTable(t *testing.T) {
	std := map[string]bool{}
	for _, p := range list(t, "std") {
		std[p.ImportPath] = true
	}
	for _, p := range list(t, "./...") {
		folder := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if len(p.GoFiles)+len(p.CgoFiles) == 0 || strings.Contains(folder, "testdata") {
			continue
		}
		allowed, known := imports[folder]
		if !known && isTestSupport(folder) {
			continue
		}
		if !known {
			t.Errorf("%s is not in the import table; say in conventions_test.go and ARCHITECTURE.md what it may import", folder)
			continue
		}
		for _, imp := range p.Imports {
			if std[imp] || imp == "C" || slices.Contains(allowed, "*") {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool {
				return imp == module+"/"+a || !strings.HasPrefix(imp, module) && (imp == a || strings.HasPrefix(imp, a+"/"))
			}) {
				t.Errorf("%s imports %s; allowed are %s", folder, imp, strings.Join(allowed, ", "))
			}
		}
	}
}

// isTestSupport is for contract suites and helper programs of tests, which no
// shipped binary reaches.
func isTestSupport(folder string) bool {
	return strings.HasSuffix(folder, "test") || strings.Contains(folder, "/internal/")
}

func TestNodeBinaryStaysLight(t *testing.T) {
	deps := list(t, "-deps", "./cmd/evenkeel-node")
	if len(deps) < 50 {
		t.Fatalf("only %d dependencies listed", len(deps))
	}
	for _, p := range deps {
		for ban, why := range nodeBan {
			if strings.HasPrefix(p.ImportPath, ban) {
				t.Errorf("evenkeel-node contains %s: %s", p.ImportPath, why)
			}
		}
	}
}

func TestShippedBinaryNeedsNoCgo(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/evenkeel")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("evenkeel does not resolve without cgo: %v %s", err, stderr(err))
	}
	if strings.Contains(string(out), "go-nvml") {
		t.Error("evenkeel contains go-nvml; only evenkeel-node talks to a driver")
	}
}

func TestPackagesIntroduceThemselves(t *testing.T) {
	for _, p := range list(t, "./...") {
		if len(p.GoFiles)+len(p.CgoFiles) == 0 || strings.Contains(p.ImportPath, "testdata") {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		data, err := packageComment(p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"In:", "Out:", "Never:"} {
			if !isTestSupport(strings.TrimPrefix(p.ImportPath, module+"/")) && !strings.Contains(data, word) {
				t.Errorf("%s: the package comment has no line %q", p.ImportPath, word)
			}
		}
	}
}

func packageComment(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		if parsed.Doc != nil {
			all.WriteString(parsed.Doc.Text())
		}
	}
	return all.String(), nil
}

// TestFiles: no init functions, no grab-bag packages, nothing over 800 lines,
// every exported name documented.
func TestFiles(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", "build", "node_modules", "testdata":
				return filepath.SkipDir
			case "util", "utils", "common", "helpers":
				t.Errorf("%s: name the folder for its subject", path)
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		lines, generated, err := measure(path)
		if err != nil {
			return err
		}
		if lines > 800 && !generated {
			t.Errorf("%s has %d lines, at most 800", path, lines)
		}
		if generated {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, msg := range complaints(parsed, strings.HasSuffix(path, "_test.go")) {
			t.Errorf("%s: %s", path, msg)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func measure(path string) (lines int, generated bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		lines++
		generated = generated || lines < 5 && strings.HasPrefix(sc.Text(), "// Code generated")
	}
	return lines, generated, sc.Err()
}

func complaints(f *ast.File, isTest bool) []string {
	var out []string
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.Name == "init" && d.Recv == nil {
				out = append(out, "func init: use an explicit literal")
			}
			if !isTest && d.Recv == nil && d.Name.IsExported() && d.Doc == nil {
				out = append(out, fmt.Sprintf("%s has no comment", d.Name.Name))
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok && !isTest && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
					out = append(out, fmt.Sprintf("%s has no comment", ts.Name.Name))
				}
			}
		}
	}
	return out
}

// Command gen writes what follows from the catalogue: frame.proto, the
// protobuf code of all schemas (the kubelet's too), the ids and accessors, docs/metrics.md.
//
// In: telemetry.Catalog. Out: files beside it. Never: run at build time; its
// output is committed and compared with a fresh run by a test.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func main() {
	root := flag.String("root", ".", "repository root")
	out := flag.String("out", "", "folder to write to instead of the root, for comparison")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		log.Fatal(err)
	}
}

func run(root, out string) error {
	if out == "" {
		out = root
	}
	dir := filepath.Join(out, "telemetry")
	for _, d := range []string{dir, filepath.Join(out, "docs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "frame.proto"), frameProto(), 0o644); err != nil {
		return err
	}
	if filepath.Clean(out) != filepath.Clean(root) {
		src, err := os.ReadFile(filepath.Join(root, "telemetry", "observation.proto"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "observation.proto"), src, 0o644); err != nil {
			return err
		}
	}
	if err := protoCode(root, dir, "frame.proto", "observation.proto"); err != nil {
		return err
	}
	if err := kubeletCode(root, out); err != nil {
		return err
	}
	code, err := format.Source(accessors())
	if err != nil {
		return fmt.Errorf("accessors: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "catalog_gen.go"), code, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "docs", "metrics.md"), metricsDoc(), 0o644)
}

// kubeletCode makes the code of what we read of the kubelet.
func kubeletCode(root, out string) error {
	const folder, file = "exporter/attribution/kubelet", "podresources.proto"
	src, err := os.ReadFile(filepath.Join(root, folder, file))
	if err != nil {
		return err
	}
	dir := filepath.Join(out, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, file), src, 0o644); err != nil {
		return err
	}
	return protoCode(root, dir, file)
}

// protoCode compiles the schemas and runs the protobuf runtime's own Go
// generator over them, so no protoc has to be installed.
func protoCode(root, dir string, files ...string) error {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{dir}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return fmt.Errorf("compile schemas: %w", err)
	}
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String("paths=source_relative,default_api_level=API_OPAQUE"),
	}
	for _, f := range linked {
		req.ProtoFile = append(req.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
	}
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "run", "google.golang.org/protobuf/cmd/protoc-gen-go")
	cmd.Dir, cmd.Stdin, cmd.Stderr = root, bytes.NewReader(in), os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("protoc-gen-go: %w", err)
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(raw, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return fmt.Errorf("protoc-gen-go: %s", resp.GetError())
	}
	for _, f := range resp.GetFile() {
		if err := os.WriteFile(filepath.Join(dir, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

const frameHead = `// Code generated from the catalogue by telemetry/gen. DO NOT EDIT.

syntax = "proto3";

package evenkeel.v1;

option go_package = "github.com/evenkeel-gpu/evenkeel/telemetry";

// Frame is all that one node says in one tick. A lost frame costs one tick:
// there are no deltas.
message Frame {
  uint32 schema = 1;
  string cluster = 2;
  string node = 3;
  string boot_id = 4;
  // Start of the sending process, in nanoseconds; grows with each restart.
  uint64 incarnation = 5;
  uint64 sequence = 6;
  int64 sample_time_unix_nano = 7;
  int64 send_time_unix_nano = 8;
  int64 monotonic_nano = 9;
  uint64 period_nano = 10;
  bool clock_synchronized = 11;
  repeated GPU gpus = 12;
  repeated Sample samples = 13;
  // Which slower parts this frame carries.
  bool has_link_part = 14;
  bool has_slow_part = 15;
  // Why the driver's library does not answer; empty while it does.
  string driver_fault = 16;
}

// Sample is a value whose labels are not a closed list, or that is not a GPU's.
message Sample {
  uint32 id = 1;
  // In the order of the catalogue row's labels.
  repeated string labels = 2;
  double value = 3;
  string uuid = 4;
}

enum Quality {
  QUALITY_OK = 0;
  QUALITY_SUSPECT = 1;
  QUALITY_STALE = 2;
  QUALITY_OUT_OF_RANGE = 3;
  QUALITY_ERROR = 4;
  QUALITY_UNSUPPORTED = 5;
}

// Description is what does not change while the driver runs.
message Description {
  uint32 index = 1;
  string pci = 2;
  string model = 3;
  string driver = 4;
  string arch = 5;
  string serial = 6;
}

// Member is a process, pod or job step that holds a GPU or a part of it. A
// process is <pid>@<start in clock ticks since boot>+<boot id>, a pod its UID, a
// step <job>.<step>.
message Member {
  string id = 1;
  // proc: a process that the node's agent may act on. pod, step: of Kubernetes,
  // of Slurm. unknown: nobody's.
  string kind = 2;
  string uuid = 3;
  optional uint32 gi = 4;
  uint64 memory_bytes = 5;
  // Reference of the workload, where the node itself can tell: kinds proc, step.
  string workload = 6;
  // User that runs it, of a pod its namespace.
  string owner = 7;
  // Its command's short name, of a pod or step its own.
  string name = 8;
  // Container or unit of the service manager that it runs in, such as
  // docker/3f29c1a4d5b6 or systemd/train.service.
  string place = 9;
}

// HungCall names a driver call that has not returned.
message HungCall {
  string call = 1;
  uint64 for_ms = 2;
}

// GPU holds the values of one device. Field numbers below 1000 are catalogue
// ids; integers times the row's scale give base units.
message GPU {
`

const gpuTail = `
  string uuid = 1000;
  Description description = 1001;
  repeated uint32 quality_ids = 1002;
  repeated Quality qualities = 1003;
  // Age of each part against the frame's sample time.
  uint32 fast_age_ms = 1004;
  uint32 link_age_ms = 1005;
  uint32 slow_age_ms = 1006;
  repeated Member members = 1007;
  HungCall hung = 1008;
  bool lost = 1009;
  // Grows when the device's parts are made anew: MIG layout, driver, reset.
  uint64 generation = 1010;
  // Which links the columns 200–299 hold; the others are holes, not zeros.
  uint64 link_mask = 1011;
  // Links that are there and down: nvlink_up is 0, other columns have holes.
  uint64 link_down_mask = 1012;
}
`

func frameProto() []byte {
	var b bytes.Buffer
	b.WriteString(frameHead)
	for _, r := range telemetry.Catalog {
		switch {
		case r.Wire.Kind == telemetry.NoWire:
		case r.Wire.Kind == telemetry.Bits:
			fmt.Fprintf(&b, "  // Bits in the order of %s.\n  optional uint32 %s = %d;\n", r.Name, bitsField(r), r.Series[0].ID)
		case r.Per == telemetry.PerLink:
			for _, s := range r.Series {
				fmt.Fprintf(&b, "  repeated %s %s = %d;\n", r.Wire.Kind, s.Field, s.ID)
			}
		default:
			for _, s := range r.Series {
				fmt.Fprintf(&b, "  optional %s %s = %d;\n", r.Wire.Kind, s.Field, s.ID)
			}
		}
	}
	b.WriteString(gpuTail)
	return b.Bytes()
}

// bitsField is the shared field of a bits row, named for its first series
// without the label value.
func bitsField(r telemetry.Row) string {
	return strings.TrimSuffix(r.Series[0].Field, "_"+r.Series[0].Values[0]) + "_bits"
}

var upper = map[string]string{"gpu": "GPU", "mig": "MIG", "nvlink": "NVLink", "pcie": "PCIe", "ecc": "ECC", "sm": "SM", "sw": "SW", "hw": "HW", "crc": "CRC", "xid": "Xid", "dram": "DRAM", "rpm": "RPM", "cpu": "CPU", "tx": "Tx", "rx": "Rx", "iowait": "IOWait"}

func camel(field string) string {
	var b strings.Builder
	for p := range strings.SplitSeq(field, "_") {
		if u, ok := upper[p]; ok {
			b.WriteString(u)
		} else {
			b.WriteString(strings.ToUpper(p[:1]) + p[1:])
		}
	}
	return b.String()
}

// protoCamel is the protobuf generator's own naming.
func protoCamel(field string) string {
	var b strings.Builder
	for p := range strings.SplitSeq(field, "_") {
		b.WriteString(strings.ToUpper(p[:1]) + p[1:])
	}
	return b.String()
}

var prefix = map[telemetry.Per]string{telemetry.PerGPU: "GPU", telemetry.PerLink: "Link", telemetry.PerInstance: "Instance", telemetry.PerProcess: "Process", telemetry.PerNode: "Node", telemetry.PerSelf: "Self"}

func constName(r telemetry.Row, s telemetry.Series) string {
	c := camel(s.Field)
	return prefix[r.Per] + strings.TrimPrefix(c, prefix[r.Per])
}

func goType(k telemetry.WireKind) string {
	switch k {
	case telemetry.U64:
		return "uint64"
	case telemetry.S32:
		return "int32"
	default:
		return "uint32"
	}
}

func accessors() []byte {
	var b bytes.Buffer
	b.WriteString("// Code generated from the catalogue by telemetry/gen. DO NOT EDIT.\n\npackage telemetry\n\n")
	b.WriteString("// Ids of the catalogue's series.\nconst (\n")
	for _, r := range telemetry.Catalog {
		for _, s := range r.Series {
			fmt.Fprintf(&b, "\t%s ID = %d\n", constName(r, s), s.ID)
		}
	}
	b.WriteString(")\n\n")
	var get, set, clr, lget, lset bytes.Buffer
	for _, r := range telemetry.Catalog {
		for i, s := range r.Series {
			switch {
			case r.Wire.Kind == telemetry.NoWire:
			case r.Wire.Kind == telemetry.Bits:
				f := protoCamel(bitsField(r))
				fmt.Fprintf(&get, "case %s:\nreturn bit(g.Get%s(), %d), g.Has%s()\n", constName(r, s), f, i, f)
				fmt.Fprintf(&set, "case %s:\ng.Set%s(withBit(g.Get%s(), %d, v))\nreturn true\n", constName(r, s), f, f, i)
				fmt.Fprintf(&clr, "case %s:\ng.Clear%s()\n", constName(r, s), f)
			case r.Per == telemetry.PerLink && r.Max == 1:
				f := protoCamel(s.Field)
				fmt.Fprintf(&lget, "case %s:\nreturn linkFlag(g, g.Get%s(), link)\n", constName(r, s), f)
				fmt.Fprintf(&lset, "case %s:\nc, ok := withLinkFlag(g, g.Get%s(), link, v)\nif ok { g.Set%s(c) }\nreturn ok\n", constName(r, s), f, f)
			case r.Per == telemetry.PerLink:
				f := protoCamel(s.Field)
				fmt.Fprintf(&lget, "case %s:\nreturn column(g, g.Get%s(), link, %g)\n", constName(r, s), f, r.Wire.Scale)
				fmt.Fprintf(&lset, "case %s:\nc, ok := withColumn(g, g.Get%s(), link, v, %g)\nif ok { g.Set%s(c) }\nreturn ok\n", constName(r, s), f, r.Wire.Scale, f)
			default:
				f := protoCamel(s.Field)
				fmt.Fprintf(&get, "case %s:\nreturn float64(g.Get%s())%s, g.Has%s()\n", constName(r, s), f, times(r.Wire.Scale), f)
				fmt.Fprintf(&set, "case %s:\nw, ok := wire[%s](v, %g)\nif ok { g.Set%s(w) }\nreturn ok\n", constName(r, s), goType(r.Wire.Kind), r.Wire.Scale, f)
				fmt.Fprintf(&clr, "case %s:\ng.Clear%s()\n", constName(r, s), f)
			}
		}
	}
	fmt.Fprintf(&b, "// Value returns a value in base units, and whether it is there.\nfunc (g *GPU) Value(id ID) (float64, bool) {\nswitch id {\n%s}\nreturn 0, false\n}\n\n", get.Bytes())
	fmt.Fprintf(&b, "// SetValue stores a value given in base units. It reports false, and stores\n// nothing, if the id has no field here or the value does not fit it.\nfunc (g *GPU) SetValue(id ID, v float64) bool {\nswitch id {\n%s}\nreturn false\n}\n\n", set.Bytes())
	fmt.Fprintf(&b, "// ClearValue removes a value. The series of a bits row go together.\nfunc (g *GPU) ClearValue(id ID) {\nswitch id {\n%s}\n}\n\n", clr.Bytes())
	fmt.Fprintf(&b, "// LinkValue returns the value of one link, and whether it is there.\nfunc (g *GPU) LinkValue(id ID, link int) (float64, bool) {\nswitch id {\n%s}\nreturn 0, false\n}\n\n", lget.Bytes())
	fmt.Fprintf(&b, "// SetLinkValue stores the value of one link, links in ascending order.\nfunc (g *GPU) SetLinkValue(id ID, link int, v float64) bool {\nswitch id {\n%s}\nreturn false\n}\n", lset.Bytes())
	return b.Bytes()
}

func times(scale float64) string {
	if scale == 1 {
		return ""
	}
	return fmt.Sprintf(" * %g", scale)
}

func metricsDoc() []byte {
	var b bytes.Buffer
	b.WriteString("<!-- Generated from telemetry/catalog.go by `make generate`. -->\n# Metrics\n\nDevice series carry the labels `node` and `uuid` beside those listed; descriptions are on `gpu_info`, workloads on `gpu_workload_info`: join on `node, uuid`. A value that a device does not support has no series.\n\n")
	b.WriteString("| id | metric | type | unit | labels | per | rate | made by | range | meaning |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range telemetry.Catalog {
		id := fmt.Sprint(r.Series[0].ID)
		if n := len(r.Series); n > 1 {
			id = fmt.Sprintf("%d–%d", r.Series[0].ID, r.Series[n-1].ID)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s | %s | %s | %s | %g … %g | %s |\n", id, r.Name, r.Type, r.Unit, strings.Join(r.Labels, ", "), r.Per, r.Rate, r.Origin, r.Min, r.Max, r.Help)
	}
	fmt.Fprintf(&b, "\n## Compatible with dcgm-exporter\n\nWith `--metrics.compat=dcgm` the node exporter also serves these families of the default counter file of dcgm-exporter %s, with the labels `gpu, UUID, pci_bus_id, device, modelName, Hostname, DCGM_FI_DRIVER_VERSION`, and `err_code, err_msg` on the Xid. A value that a device does not have has no series.\n\n", telemetry.DCGMVersion)
	b.WriteString("| family | type | from | meaning |\n|---|---|---|---|\n")
	for _, d := range telemetry.DCGMFamilies {
		var from []string
		ids, _ := d.Series()
		for _, id := range ids {
			for _, r := range telemetry.Catalog {
				name := "`" + r.Name + "`"
				if slices.ContainsFunc(r.Series, func(s telemetry.Series) bool { return s.ID == id }) && !slices.Contains(from, name) {
					from = append(from, name)
				}
			}
		}
		source := strings.Join(from, ", ")
		if d.Lacks != "" {
			source = "not served: " + d.Lacks
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, source, d.Help)
	}
	return b.Bytes()
}

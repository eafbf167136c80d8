package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// captures are recorded outputs of real machines, which the tree does not hold.
func captures(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../../shared/data/captures")
	if err != nil {
		t.Fatal(err)
	}
	for d := dir; ; d = filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(d)))), "shared/data/captures") {
		if _, err := os.Stat(d); err == nil {
			return d
		}
		if d == "/shared/data/captures" {
			t.Skip("no recorded outputs at ../shared/data/captures")
		}
	}
}

// program is a script in place of one that reads devices.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// reads runs the one input of a file once.
func reads(t *testing.T, toml string) ([]string, error) {
	t.Helper()
	c, err := Parse([]byte(toml))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Inputs[0].reader(quiet())
	b := r.once(t.Context(), DefaultPeriod)
	var list []string
	for _, s := range b.Samples {
		row := telemetry.RowOf(s.ID)
		list = append(list, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %.4g", row.Name, s.UUID, strings.Join(s.Labels, "|"), s.Value)), " "))
	}
	if b.Error != "" {
		err = fmt.Errorf("%s", b.Error)
	}
	return list, err
}

// smiGives is what each recorded output of the driver's program must give for
// each of its devices, and what it is known to lack, by its generation.
var smiGives = []struct {
	file  string
	gpus  int
	lacks []string
}{
	{"smi-tesla-t4.xml", 1, nil},
	{"smi-gtx-1070-ti.xml", 1, []string{"gpu_power_watts"}}, // v10; a consumer card of 2017
	{"smi-rtx-3090-v12.xml", 1, nil},
	{"smi-rtx-3080-v13.xml", 1, nil},
	// With MIG enabled the whole device has no utilisation.
	{"smi-a100-sxm4-v12.xml", 1, []string{"gpu_utilization_ratio", "gpu_memory_utilization_ratio"}},
	{"smi-qx-a100.xml", 1, nil},
	{"smi-qx-h100.xml", 8, nil},
	{"smi-qx-gb200.xml", 4, nil},
	{"smi-qx-gb200-lost.xml", 1, nil}, // of two, one is lost
}

// TestEveryDriverGenerationParsesOrSaysWhatItLacks: of each recorded output every
// device has the values that an operator looks for, in base units and in range,
// but those that its generation is known not to tell.
func TestEveryDriverGenerationParsesOrSaysWhatItLacks(t *testing.T) {
	dir := captures(t)
	wants := []string{"gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_temperature_celsius", "gpu_power_watts", "gpu_clock_hertz"}
	for _, c := range smiGives {
		got, err := reads(t, fmt.Sprintf("[[inputs.nvidia_smi]]\nbin_path = %q\n", program(t, "cat "+filepath.Join(dir, c.file))))
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		count := map[string]map[string]bool{}
		for _, line := range got {
			f := strings.Fields(line)
			if count[f[0]] == nil {
				count[f[0]] = map[string]bool{}
			}
			count[f[0]][f[1]] = true
		}
		for _, w := range wants {
			want := c.gpus
			if slices.Contains(c.lacks, w) {
				want = 0
			}
			if n := len(count[w]); n != want {
				t.Errorf("%s: %s of %d devices, want %d", c.file, w, n, want)
			}
		}
	}
}

func TestRecordedOutputsOfROCm(t *testing.T) {
	dir := captures(t)
	for file, want := range map[string][]string{
		"rocm-rx6700xt_rocm612.json": {"gpu_temperature_celsius", "gpu_memory_total_bytes", "gpu_power_watts", "gpu_utilization_ratio"},
		"rocm-mi100_rocm602.json":    {"gpu_temperature_celsius", "gpu_memory_total_bytes", "gpu_utilization_ratio"},
	} {
		got, err := reads(t, fmt.Sprintf("[[inputs.amd_rocm_smi]]\nbin_path = %q\n", program(t, "cat "+filepath.Join(dir, file))))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, w := range want {
			if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, w+" AMD-") }) {
				t.Errorf("%s: no %s in\n%s", file, w, strings.Join(got, "\n"))
			}
		}
	}
}

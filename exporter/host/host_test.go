package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (s *samples) lines() []string {
	var list []string
	for _, x := range s.list {
		list = append(list, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %.6g", telemetry.RowOf(x.ID).Name, x.UUID, strings.Join(x.Labels, "|"), x.Value)), " "))
	}
	slices.Sort(list)
	return list
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every input that is read without being asked for tells something of the
// machine that the test runs on, in range.
func TestUsualInputsReadThisHost(t *testing.T) {
	c, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range c.Inputs {
		r := c.Inputs[i].reader(quiet())
		b := r.once(t.Context(), c.Period)
		if c.Inputs[i].Name == "cpu" { // the first run has nothing to compare with
			time.Sleep(20 * time.Millisecond)
			b = r.once(t.Context(), c.Period)
		}
		if b.Error != "" && c.Inputs[i].Name != "temp" {
			t.Errorf("%s: %s", c.Inputs[i].Name, b.Error)
		}
		for _, s := range b.Samples {
			seen[telemetry.RowOf(s.ID).Name] = true
		}
	}
	for _, name := range []string{"node_host_cpu_utilization_ratio", "node_host_memory_total_bytes", "node_host_memory_available_bytes", "node_host_network_bytes_total"} {
		if !seen[name] {
			t.Errorf("no %s", name)
		}
	}
}

func TestBoardSensors(t *testing.T) {
	ipmitool := program(t, `case "$*" in
*dcmi*) echo "    Instantaneous power reading:                   412 Watts" ;;
*) cat <<END
Inlet Temp       | 23 degrees C      | ok
CPU1 Temp        | 61 degrees C      | ok
Fan1             | 8160 RPM          | ok
Fan2             | no reading        | ns
Pwr Consumption  | 1890 Watts        | ok
PS1 Input        | 930 Watts         | ok
PS1 Status       | 0x01              | ok
PS2 Status       | 0x08              | cr
Planar VBAT      | 3.05 Volts        | ok
CPU2 Temp        | 9000 degrees C    | ok
END
;; esac`)
	got, err := reads(t, fmt.Sprintf("[[inputs.ipmi_sensor]]\npath = %q\nuse_cache = false\n", ipmitool))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ipmitool", got, "node_host_inlet_celsius 23", "node_host_temperature_celsius cpu1_temp 61", "node_host_fan_rpm fan1 8160",
		"node_host_power_watts 1890", "node_host_feed_watts ps1_input 930", "node_host_psu_up ps1_status 1", "node_host_psu_up ps2_status 0")
}

// A program that fails, hangs or is not there is a reader that fails and says so.
func TestProgramThatFails(t *testing.T) {
	for what, script := range map[string]string{"fails": "echo no device >&2; exit 1", "hangs": "exec sleep 1000"} {
		t.Run(what, func(t *testing.T) {
			if raced && what == "hangs" {
				t.Skip("Telegraf v1.39.3 reads a command's state while it ends it: the race is its own (internal/exec_unix.go)")
			}
			_, err := reads(t, fmt.Sprintf("[[inputs.ipmi_sensor]]\npath = %q\ntimeout = \"100ms\"\nuse_cache = false\n", program(t, script)))
			if err == nil {
				t.Errorf("a program that %s is no error", what)
			}
		})
	}
	if _, err := reads(t, "[[inputs.nvidia_smi]]\nbin_path = \"/nowhere/nvidia-smi\"\n"); err == nil {
		t.Error("a program that is not there is no error")
	}
}

func TestDisksOwnTests(t *testing.T) {
	smartctl := program(t, `case "$*" in
*--scan*) echo '{"devices":[{"name":"/dev/nvme0","info_name":"/dev/nvme0","type":"nvme","protocol":"NVMe"}]}' ;;
*) echo '{"device":{"name":"/dev/nvme0","type":"nvme"},"serial_number":"S1","model_name":"M","smart_status":{"passed":true},"temperature":{"current":39},"nvme_smart_health_information_log":{"temperature":39,"percentage_used":7}}' ;;
esac`)
	got, err := reads(t, fmt.Sprintf("[[inputs.smartctl]]\npath = %q\n", smartctl))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "smartctl", got, "node_host_disk_healthy /dev/nvme0 1", "node_host_temperature_celsius /dev/nvme0 39", "node_host_disk_wear_ratio /dev/nvme0 0.07")
}

// Counters of ports are in words of four bytes; up and speed come from the
// kernel's own files.
func TestPortsOfTheComputeNetwork(t *testing.T) {
	var s samples
	ofInfiniband(&point{"infiniband", map[string]any{"port_xmit_data": uint64(1000), "port_rcv_data": uint64(10), "symbol_error": uint64(3), "unicast_xmit_packets": uint64(9)}, map[string]string{"device": "mlx5_0", "port": "1"}}, &s)
	root := t.TempDir()
	for path, text := range map[string]string{
		"mlx5_0/ports/1/state": "4: ACTIVE\n", "mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
		"rocep1/ports/1/state": "1: DOWN\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := readPorts(root, &s); err != nil {
		t.Fatal(err)
	}
	same(t, "ports", s.lines(), "node_fabric_bytes_total mlx5_0|1|tx 4000", "node_fabric_bytes_total mlx5_0|1|rx 40", "node_fabric_errors_total mlx5_0|1|symbol_error 3",
		"node_fabric_up mlx5_0|1 1", "node_fabric_speed_bytes_per_second mlx5_0|1 5e+10", "node_fabric_up rocep1|1 0")
	if err := readPorts(filepath.Join(root, "none"), &s); err != nil {
		t.Errorf("no such network: %v", err)
	}
}

// A mount whose server is away stalls its own probe and nothing else, is asked
// by one process at a time, and is well again when it answers.
func TestDeadMountStallsOnlyItsOwnProbe(t *testing.T) {
	dir := t.TempDir()
	list, gate, asked := filepath.Join(dir, "mountinfo"), filepath.Join(dir, "gate"), filepath.Join(dir, "asked")
	text := `36 35 98:0 / /data\040one rw,noatime shared:1 - nfs4 server:/a rw
37 35 98:0 / /dead rw - lustre mgs@tcp:/x rw
38 35 98:0 / /gluster rw - fuse.glusterfs host:/v rw
39 35 98:0 / / rw - ext4 /dev/sda1 rw
40 35 98:0 / /dead rw - lustre mgs@tcp:/x rw
broken line
`
	if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	script := program(t, fmt.Sprintf(`[ "$1" = /dead ] || exit 0
echo asked >> %q
while [ ! -e %q ]; do sleep 0.01; done`, asked, gate))
	dead := mount{"/dead", "lustre"}
	ask := func(wait time.Duration) *prober {
		return &prober{list: list, command: []string{script}, types: networked, wait: wait}
	}
	first := ask(50 * time.Millisecond)
	if is, err := first.one(t.Context(), dead); !is || err != nil {
		t.Fatalf("%v, %v", is, err)
	}
	p := ask(20 * time.Second)
	p.stuck = map[mount]bool{dead: true} // its last probe is still out there
	stalled := []string{`node_host_mount_stalled /data one|nfs4 0`, `node_host_mount_stalled /dead|lustre 1`, `node_host_mount_stalled /gluster|fuse.glusterfs 0`}
	var s samples
	if err := p.probe(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	same(t, "one is dead", s.lines(), stalled...)
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p.free(dead)
	s = samples{}
	if err := p.probe(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	stalled[1] = "node_host_mount_stalled /dead|lustre 0"
	same(t, "all answer", s.lines(), stalled...)
	if err := Probe(dir); err != nil {
		t.Errorf("a probe of a folder: %v", err)
	}
}

// A key that nobody knows, an input that is none of ours and a metric that is
// none of the catalogue are errors that say what to do.
func TestHostFileIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"[[inputs.cpu]]\npercpuu = true":                             "percpuu",
		"[[inputs.kafka]]\n":                                         "want one of cpu, mem",
		"[agent]\ninterval = \"10s\"":                                "agent is not known",
		"[host]\ninterval = \"1ms\"":                                 "host.interval",
		"[host]\nintervall = \"15s\"":                                "intervall",
		"[[endpoints]]\nname = \"tpu\"":                              "want a name and an http or https URL",
		"[[inputs.cpu]\n":                                            "host file",
		"[inputs]\ncpu = 3":                                          "want tables",
		endpointWith("gpu_nonsense", ""):                             "no metric of ours",
		endpointWith("gpu_health", ""):                               "not read on nodes",
		endpointWith("gpu_throttle", ""):                             "no metric of ours",
		endpointWith("gpu_temperature_celsius", ""):                  "has a label sensor",
		endpointWith("gpu_power_watts", `labels = { sensor = "x" }`): "has no label sensor",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	c, err := Parse([]byte("[host]\ninterval = \"30s\"\nports = false\n[mounts]\nprobe = false\n[[inputs.net]]\ninterfaces = [\"eth*\"]\n[[inputs.ipmi_sensor]]\nservers = [\"a:b@lan(10.0.0.1)\"]\n[[inputs.ipmi_sensor]]\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, in := range c.Inputs {
		got = append(got, in.Name)
	}
	if !slices.Equal(got, []string{"ipmi_sensor", "ipmi_sensor_2", "net"}) || c.Period != 30*time.Second || c.Ports || c.Mounts.Probe {
		t.Errorf("%v, %+v", got, c)
	}
}

func endpointWith(to, more string) string {
	return fmt.Sprintf("[[endpoints]]\nname = \"x\"\nurl = \"http://127.0.0.1:1/metrics\"\ndevice = \"d\"\n[[endpoints.map]]\nfrom = \"f\"\nto = %q\n%s\n", to, more)
}

// Accelerators with a Prometheus endpoint are mapped onto the catalogue by
// configuration alone.
func TestOtherAcceleratorsByTheirEndpoints(t *testing.T) {
	for _, c := range []struct{ what, text, rules, want string }{
		{
			"TPU", "# TYPE duty_cycle gauge\nduty_cycle{accelerator_id=\"4-0\",model=\"v5e\"} 87.5\n# TYPE memory_used gauge\nmemory_used{accelerator_id=\"4-0\"} 1.6e10\nmemory_used{model=\"none\"} 1\n",
			"device = \"accelerator_id\"\nprefix = \"TPU-\"\n[[endpoints.map]]\nfrom = \"duty_cycle\"\nto = \"gpu_utilization_ratio\"\nscale = 0.01\n[[endpoints.map]]\nfrom = \"memory_used\"\nto = \"gpu_memory_used_bytes\"\n",
			"gpu_utilization_ratio TPU-4-0 0.875; gpu_memory_used_bytes TPU-4-0 1.6e+10",
		},
		{
			"Gaudi", "# TYPE habanalabs_temperature_onchip gauge\nhabanalabs_temperature_onchip{UUID=\"01P0\"} 51\n# TYPE habanalabs_power_mW gauge\nhabanalabs_power_mW{UUID=\"01P0\"} 350000\n",
			"device = \"UUID\"\nprefix = \"HL-\"\n[[endpoints.map]]\nfrom = \"habanalabs_temperature_onchip\"\nto = \"gpu_temperature_celsius\"\nlabels = { sensor = \"core\" }\n[[endpoints.map]]\nfrom = \"habanalabs_power_mW\"\nto = \"gpu_power_watts\"\nscale = 0.001\n",
			"gpu_temperature_celsius HL-01P0 core 51; gpu_power_watts HL-01P0 350",
		},
		{
			"Ascend", "npu_chip_info_temperature{id=\"0\",vdie_id=\"AB\"} 44 1700000000000\nnpu_chip_info_temperature{id=\"1\",vdie_id=\"CD\"} -274 1700000000000\nnpu_chip_info_hbm_used_memory{id=\"0\",vdie_id=\"AB\"} 2048\n",
			"device = \"vdie_id\"\nprefix = \"NPU-\"\n[[endpoints.map]]\nfrom = \"npu_chip_info_temperature\"\nto = \"gpu_temperature_celsius\"\nlabels = { sensor = \"core\" }\n[[endpoints.map]]\nfrom = \"npu_chip_info_hbm_used_memory\"\nto = \"gpu_memory_used_bytes\"\nscale = 1048576.0\nmatch = { id = \"0\" }\n",
			"gpu_temperature_celsius NPU-AB core 44; gpu_memory_used_bytes NPU-AB 2.14748e+09",
		},
	} {
		answer, code := c.text, http.StatusOK
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(answer))
		}))
		cfg, err := Parse([]byte(fmt.Sprintf("[[endpoints]]\nname = %q\nurl = %q\n%s", c.what, srv.URL, c.rules)))
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		var s samples
		if err := cfg.Endpoints[0].scrape(t.Context(), &s); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		same(t, c.what, s.lines(), strings.Split(c.want, "; ")...)
		// What is broken tells nothing, and says so.
		for _, bad := range []struct {
			text string
			code int
		}{{c.text + "}{ nonsense\n", 200}, {"x [N/A]\n", 200}, {"sorry", 503}} {
			answer, code = bad.text, bad.code
			var s samples
			if err := cfg.Endpoints[0].scrape(t.Context(), &s); err == nil || len(s.list) > 0 {
				t.Errorf("%s, %q: %v, %v", c.what, bad.text, err, s.lines())
			}
		}
		srv.Close()
		if err := cfg.Endpoints[0].scrape(t.Context(), &s); err == nil {
			t.Errorf("%s: an endpoint that is away is no error", c.what)
		}
	}
}

func TestPressureAndLoad(t *testing.T) {
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "pressure"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"loadavg": "3.25 1 1 1/1 1\n", "pressure/io": "some avg10=12.50 avg60=0 avg300=0 total=1\nfull avg10=9 avg60=0 avg300=0 total=1\n"} {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var s samples
	if err := readPressure(proc, &s); err != nil {
		t.Fatal(err)
	}
	same(t, "pressure", s.lines(), "node_host_load1 3.25", "node_host_pressure_ratio io 0.125")
}

// broken is a plugin that does what plugins should not.
type broken struct {
	gather func(telegraf.Accumulator) error
}

func (broken) SampleConfig() string                    { return "" }
func (b broken) Gather(acc telegraf.Accumulator) error { return b.gather(acc) }

// A plugin that panics has failed; what one gave before it failed is kept.
func TestPluginThatBreaksHasFailedAndNoMore(t *testing.T) {
	give := func(acc telegraf.Accumulator) {
		acc.AddGauge("mem", map[string]any{"total": uint64(5), "available": uint64(3)}, nil)
	}
	for what, gather := range map[string]func(telegraf.Accumulator) error{
		"panics": func(acc telegraf.Accumulator) error {
			give(acc)
			panic("nil map")
		},
		"fails": func(acc telegraf.Accumulator) error {
			give(acc)
			return errors.New("nil map")
		},
		"reports": func(acc telegraf.Accumulator) error {
			give(acc)
			acc.AddError(errors.New("nil map"))
			acc.AddError(nil)
			return nil
		},
	} {
		in := Input{Name: "mem", plugin: broken{gather}, translate: ofMemory}
		r := in.reader(quiet())
		b := r.once(context.Background(), time.Second)
		if !strings.Contains(b.Error, "nil map") {
			t.Errorf("%s: %q", what, b.Error)
		}
		if n := len(b.Samples); what != "panics" && n != 2 {
			t.Errorf("%s: %d samples", what, n)
		}
	}
}

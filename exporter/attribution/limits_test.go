package attribution

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
)

// region is what HAMi-core shares for devices, in its version 1.
func region(uuids []string, memory, sm []uint64) []byte {
	data := make([]byte, regionHead+100)
	le := binary.LittleEndian
	le.PutUint32(data, regionFlag)
	le.PutUint32(data[4:], 1)
	le.PutUint64(data[regionCount:], uint64(len(uuids)))
	for i, u := range uuids {
		copy(data[regionNames+i*regionNameBytes:], u)
		le.PutUint64(data[regionMemory+8*i:], memory[i])
		le.PutUint64(data[regionSM+8*i:], sm[i])
	}
	return data
}

// Limits of MPS clients and of intercepted processes are told with their source,
// of the region before the variables, and only on the device that they hold on.
func TestLimitsOfWaysOfSharing(t *testing.T) {
	for _, c := range []struct {
		what, env string
		region    []byte
		want      []string
	}{
		{"mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25\x00CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=4G\x00", nil,
			[]string{"gpu_member_memory_limit_bytes M 2.147483648e+09 ID|mps", "gpu_member_sm_limit_ratio M 0.25 ID|mps", "not gpu_sharing_info M 1 intercepted"}},
		{"hami by variables", "CUDA_DEVICE_MEMORY_LIMIT_0=3000m\x00CUDA_DEVICE_SM_LIMIT=30\x00", nil,
			[]string{"gpu_member_memory_limit_bytes M 3.145728e+09 ID|hami", "gpu_member_sm_limit_ratio M 0.3 ID|hami", "gpu_sharing_info M 1 intercepted", "not gpu_sharing_info M 1 exclusive"}},
		{"hami by its region", "CUDA_DEVICE_MEMORY_LIMIT_0=1m\x00CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/x.cache\x00", region([]string{gpuN(7), gpuN(0)}, []uint64{5, 1 << 30}, []uint64{10, 50}),
			[]string{"gpu_member_memory_limit_bytes M 1.073741824e+09 ID|hami", "gpu_member_sm_limit_ratio M 0.5 ID|hami", "gpu_sharing_info M 1 intercepted"}},
		{"a region of an unknown version", "CUDA_DEVICE_MEMORY_LIMIT=1g\x00CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/x.cache\x00", make([]byte, 4000),
			[]string{"gpu_member_memory_limit_bytes M 1.073741824e+09 ID|hami"}},
		{"nonsense", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=900\x00CUDA_DEVICE_MEMORY_LIMIT=99999999999999999999g\x00CUDA_DEVICE_SM_LIMIT=NaN\x00", nil,
			[]string{"not gpu_member_memory_limit", "not gpu_member_sm_limit", "not gpu_sharing_info M 1 intercepted"}},
	} {
		run := processtest.Start(t, "echo ready\nexec sleep 1000")
		settled(t, run.ID)
		proc := processtest.Elsewhere(t, map[int]string{run.PID: "0::/system.slice/train.service\n"})
		dir := filepath.Join(proc.Root, strconv.Itoa(run.PID))
		files := map[string][]byte{"environ": []byte(c.env)}
		if c.region != nil {
			files["root/usr/local/vgpu/x.cache"] = c.region
		}
		for name, text := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r := newRig(t, Options{Proc: proc})
		h := r.lists(0, gpuN(0), exporter.Process{PID: run.PID, MemoryBytes: 1, Instance: exporter.NoInstance})
		if len(h.Members) != 1 {
			t.Fatalf("%s: %d members", c.what, len(h.Members))
		}
		for _, w := range c.want {
			r.tells(c.what, strings.NewReplacer(" M ", " "+gpuN(0)+" ", " ID|", " "+h.Members[0].GetId()+"|").Replace(w))
		}
	}
}

// Whatever is in a region's file, reading it ends, and in sane limits.
func TestRegionOfAnybodysMaking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 2500).Draw(t, "data")
		if len(data) >= regionHead && rapid.Bool().Draw(t, "begins well") {
			copy(data, region(nil, nil, nil)[:8])
			data[regionCount] = byte(rapid.IntRange(0, 20).Draw(t, "count"))
			copy(data[regionCount+1:], make([]byte, 7))
		}
		list, err := parseRegion(data)
		for _, l := range list {
			if err != nil || l.memory > 1<<42 || l.sm < 0 || l.sm > 1 {
				t.Fatalf("%+v, %v", l, err)
			}
		}
	})
}

// A GPU that a virtual machine has is told as handed through, not as lost: the
// kernel lists it under another driver. Other devices of that driver are not.
func TestPassthroughIsNotLost(t *testing.T) {
	pci := t.TempDir()
	for name, words := range map[string][3]string{
		"0000:3b:00.0": {"0x10de", "0x030200", "0x2330"}, "0000:3c:00.0": {"0x15b3", "0x020000", "0x1021"}, "0000:3d:00.0": {"0x10de", "0x040300", "0x228b"},
	} {
		dir := filepath.Join(pci, "drivers/vfio-pci", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, file := range []string{"vendor", "class", "device"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(words[i]+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(pci, "drivers/vfio-pci/bind"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := passthrough(pci); !slices.Equal(got, []passed{{"0000:3b:00.0", "0x2330", "vfio-pci"}}) {
		t.Errorf("%+v", got)
	}
	r := newRig(t, Options{PCI: pci})
	r.lists(0, gpuN(0))
	r.tells("a GPU is handed through", "node_gpu_passthrough_info 1 0000:3b:00.0|0x2330|vfio-pci")
}

package host

import (
	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/inputs"

	// Each by its own name: all of them together are 100 MiB.
	_ "github.com/influxdata/telegraf/plugins/inputs/amd_rocm_smi"
	_ "github.com/influxdata/telegraf/plugins/inputs/cpu"
	_ "github.com/influxdata/telegraf/plugins/inputs/disk"
	_ "github.com/influxdata/telegraf/plugins/inputs/diskio"
	_ "github.com/influxdata/telegraf/plugins/inputs/infiniband"
	_ "github.com/influxdata/telegraf/plugins/inputs/ipmi_sensor"
	_ "github.com/influxdata/telegraf/plugins/inputs/mem"
	_ "github.com/influxdata/telegraf/plugins/inputs/net"
	_ "github.com/influxdata/telegraf/plugins/inputs/nvidia_smi"
	_ "github.com/influxdata/telegraf/plugins/inputs/smartctl"
	_ "github.com/influxdata/telegraf/plugins/inputs/temp"
)

// plugin is an input of Telegraf that there is a translation for.
type plugin struct {
	name      string
	translate translation
	// usual is its TOML where no file says otherwise; empty if it has to be asked
	// for, since it runs a program that may not be there.
	usual string
}

// plugins in the order in which they are told.
var plugins = []plugin{
	{"cpu", ofCPU, "percpu = false\ntotalcpu = true\n"},
	{"mem", ofMemory, "\n"},
	// A mount whose server is away blocks whoever looks at it; those are probed.
	{"disk", ofDisk, `ignore_fs = ["tmpfs", "devtmpfs", "devfs", "iso9660", "overlay", "aufs", "squashfs", "nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "beegfs", "gpfs", "wekafs", "fuse", "autofs"]` + "\n"},
	{"diskio", ofDiskIO, "\n"},
	{"net", ofNetwork, "\n"},
	{"temp", ofTemperature, "\n"},
	{"infiniband", ofInfiniband, ""},
	{"ipmi_sensor", ofIPMI, ""},
	{"smartctl", ofSMART, ""},
	{"nvidia_smi", ofNvidiaSMI, ""},
	{"amd_rocm_smi", ofROCmSMI, ""},
}

func (p *plugin) make() telegraf.Input { return inputs.Inputs[p.name]() }

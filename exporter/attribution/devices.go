package attribution

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Instance is a MIG instance of a GPU, as the driver lists it.
type Instance struct {
	GPU  string // UUID of the device
	UUID string // MIG-…
	GI   uint32
}

// devices are the GPUs of the node by every name that others have for them.
// Schedulers count by minor number or by place on the bus, never as the driver's
// library counts, and all of them write ids in their own way.
type devices struct {
	byMinor map[int]string
	byPCI   map[string]string
	byPlace []string // in the order of the bus
	parts   map[string]Instance
	mdev    string // folder in which virtual GPUs are links to their devices
}

// informationOf is what the kernel module says of a device, by its address.
const informationOf = "driver/nvidia/gpus"

// readDevices asks the kernel module, which costs no call of the driver's
// library. A node without one has no names but UUIDs.
func readDevices(proc, mdev string, instances []Instance) *devices {
	d := &devices{byMinor: map[int]string{}, byPCI: map[string]string{}, parts: map[string]Instance{}, mdev: mdev}
	for _, i := range instances {
		d.parts[i.UUID] = i
	}
	root := filepath.Join(proc, informationOf)
	entries, err := os.ReadDir(root) // sorted, and addresses sort as the bus does
	if err != nil {
		return d
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(root, e.Name(), "information"))
		if err != nil {
			continue
		}
		uuid := fieldOf(text, "GPU UUID")
		if gpuID.FindString(uuid) != uuid || uuid == "" {
			uuid = "" // question marks while nobody has opened the device
		}
		d.byPlace = append(d.byPlace, uuid)
		if uuid == "" {
			continue
		}
		d.byPCI[pciKey(e.Name())] = uuid
		if minor, err := strconv.Atoi(fieldOf(text, "Device Minor")); err == nil {
			d.byMinor[minor] = uuid
		}
	}
	return d
}

func fieldOf(text []byte, name string) string {
	for line := range bytes.Lines(text) {
		if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// pciKey is an address without its domain's leading zeros, of which people write
// four or eight digits.
func pciKey(address string) string { return strings.TrimLeft(strings.ToLower(address), "0") }

const uuidPattern = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`

var (
	gpuID = regexp.MustCompile(`^GPU-` + uuidPattern)
	// A replica of a shared device: ::3 of NVIDIA's plugin, -3 and _-_3 of others.
	replica  = regexp.MustCompile(`^(::\d+|-\d+|-_-\d+|_\d+)?$`)
	migID    = regexp.MustCompile(`^(MIG-` + uuidPattern + `)(.*)$`)
	migOld   = regexp.MustCompile(`^MIG-(GPU-` + uuidPattern + `)/(\d{1,3})/\d{1,3}(.*)$`)
	byNode   = regexp.MustCompile(`^nvidia(\d{1,4})(?:/gi(\d{1,3}))?(/vgpu\d+)?$`)
	byClaim  = regexp.MustCompile(`^gpu-(\d{1,4})(-mig-.+)?$`)
	pciID    = regexp.MustCompile(`^(?:[0-9a-fA-F]{4,8}:)[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)
	mdevID   = regexp.MustCompile(`^` + uuidPattern + `$`)
	placeNum = regexp.MustCompile(`^(\d{1,4})(?:\.(\d{1,3}))?$`)
)

// found is what an id names.
type found struct {
	uuid string
	gi   string // of a MIG instance, where it is known
	// How it is given away: shared by replicas, a part by MIG, a virtual GPU.
	replica, mig, vgpu bool
}

// resolve finds the device that a kubelet's id or a claim's device names.
func (d *devices) resolve(id string) (found, bool) {
	if uuid := gpuID.FindString(id); uuid != "" {
		rest := id[len(uuid):]
		return found{uuid: uuid, replica: rest != ""}, replica.MatchString(rest)
	}
	if m := migOld.FindStringSubmatch(id); m != nil {
		return found{uuid: m[1], gi: m[2], mig: true, replica: m[3] != ""}, replica.MatchString(m[3])
	}
	if m := migID.FindStringSubmatch(id); m != nil {
		part, ok := d.parts[m[1]]
		return found{uuid: part.GPU, gi: strconv.FormatUint(uint64(part.GI), 10), mig: true, replica: m[2] != ""}, ok && replica.MatchString(m[2])
	}
	if m := byNode.FindStringSubmatch(id); m != nil {
		uuid, ok := d.minor(m[1])
		return found{uuid: uuid, gi: m[2], mig: m[2] != "", replica: m[3] != ""}, ok
	}
	if m := byClaim.FindStringSubmatch(id); m != nil {
		// Of a part the name tells the profile and the place, not the instance.
		uuid, ok := d.minor(m[1])
		return found{uuid: uuid, mig: m[2] != ""}, ok
	}
	if pciID.MatchString(id) {
		uuid, ok := d.byPCI[pciKey(id)]
		return found{uuid: uuid}, ok
	}
	if mdevID.MatchString(id) {
		return d.virtual(id)
	}
	return found{}, false
}

func (d *devices) minor(text string) (string, bool) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return "", false
	}
	uuid, ok := d.byMinor[n]
	return uuid, ok
}

// virtual finds the device of a mediated one: its link leads through the
// address of the parent.
func (d *devices) virtual(id string) (found, bool) {
	target, err := os.Readlink(filepath.Join(d.mdev, id))
	if err != nil {
		return found{}, false
	}
	for part := range strings.SplitSeq(target, "/") {
		if uuid, ok := d.byPCI[pciKey(part)]; ok && pciID.MatchString(part) {
			return found{uuid: uuid, vgpu: true}, true
		}
	}
	return found{}, false
}

// place finds the device of a job file's name: 0, 0.3, or an id.
func (d *devices) place(name string) (found, bool) {
	m := placeNum.FindStringSubmatch(name)
	if m == nil {
		return d.resolve(name)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil || n >= len(d.byPlace) || d.byPlace[n] == "" {
		return found{}, false
	}
	return found{uuid: d.byPlace[n], gi: m[2], mig: m[2] != ""}, true
}

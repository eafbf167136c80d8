package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
)

// Kinds of an entry of the process table. One that is being written has a kind
// of its own that names its claimer.
const (
	shmCompute = 1
	shmKindMax = 3 // graphics and MPS are beside it
	shmWriting = 1 << 31

	writerShift = 9 // pids have 22 bits at most
	writerStart = 1<<writerShift - 1
)

// heartbeatMax is how old a heartbeat may be; the library has the same bound.
const heartbeatMax = 2 * time.Second

// Table is the process table of a served world, as the processes of its node
// see it. A program that would open a GPU makes a claim instead.
type Table struct{ file *sharedFile }

// OpenTable opens the table of the world that is served at a path.
func OpenTable(path string) (*Table, error) {
	hint := fmt.Sprintf("start one with `evenkeel sim serve --shm %s`", path)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no world is served at %s: %s, or name its file by --shm", path, hint)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the world at %s may not be written by this user: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("open the world: %w", err)
	}
	defer file.Close() // the mapping keeps the file
	notOne := fmt.Errorf("%s is not the file of a world that this version can read: %s", path, hint)
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() < int64(shmSize) {
		return nil, notOne
	}
	s, err := mapShared(file)
	if err != nil {
		return nil, fmt.Errorf("open the world: %w", err)
	}
	s.path = path
	if w := s.world; atomic.LoadUint64(&w.Magic) != shmMagic || w.Layout != shmLayout || w.Devices > shmDevices {
		_ = s.unmap()
		return nil, notOne
	}
	return &Table{s}, nil
}

// Close gives the table back. Claims that were made stay.
func (t *Table) Close() error { return t.file.unmap() }

func (t *Table) alive(now time.Time) error {
	beat := atomic.LoadUint64(&t.file.world.HeartbeatUS)
	age := now.Sub(time.UnixMicro(int64(beat)))
	if beat != 0 && age <= heartbeatMax {
		return nil
	}
	since := "has ended"
	if beat != 0 {
		since = fmt.Sprintf("gives no sign of life for %s", age.Round(time.Second))
	}
	return fmt.Errorf("the world at %s %s: start it again with `evenkeel sim serve --shm %s`", t.file.path, since, t.file.path)
}

// Claim claims a share of each of some GPUs for a running process, all or none.
// A start of 0 takes the one that the process has. The world takes the claim
// within a scan, and drops it when the process ends.
func (t *Table) Claim(gpus []int, c Claim) error {
	if err := t.alive(time.Now()); err != nil {
		return err
	}
	if err := t.check(gpus, &c); err != nil {
		return err
	}
	writer, err := writerKind()
	if err != nil {
		return err
	}
	var slots []*shmProcess
	for _, gpu := range gpus {
		p := t.reserve(gpu, writer)
		if p == nil {
			for _, p := range slots {
				atomic.CompareAndSwapUint32(&p.Kind, writer, 0)
			}
			return fmt.Errorf("GPU %d has %d claims, which is all that its table holds: end a process that `evenkeel sim claims --shm %s` lists", gpu, shmProcesses, t.file.path)
		}
		p.write(c)
		slots = append(slots, p)
	}
	for _, p := range slots {
		if !atomic.CompareAndSwapUint32(&p.Kind, writer, shmCompute) {
			return errors.New("somebody else wrote to a slot of the process table while this claim was made: try again")
		}
	}
	return nil
}

// check refuses what cannot be, and looks the start of the process up.
func (t *Table) check(gpus []int, c *Claim) error {
	w := t.file.world
	if len(gpus) == 0 {
		return errors.New("a claim needs a GPU")
	}
	p, err := process.Read(c.PID)
	if err != nil || p.Dead() || c.Start != 0 && c.Start != p.Start {
		return fmt.Errorf("process %d is not running on this machine, or is not to be seen by this user", c.PID)
	}
	c.Start = p.Start
	if !(c.Share > 0 && c.Share <= 1) {
		return fmt.Errorf("a share of %g is not above 0 and at most 1, the whole GPU", c.Share)
	}
	for i, gpu := range gpus {
		if gpu < 0 || gpu >= int(w.Devices) {
			return fmt.Errorf("GPU %d is not there: the world at %s has GPUs 0 to %d", gpu, t.file.path, w.Devices-1)
		}
		if slices.Contains(gpus[:i], gpu) {
			return fmt.Errorf("GPU %d is named twice", gpu)
		}
		d := &w.Device[gpu]
		used := d.MemoryReservedBytes + atomic.LoadUint64(&d.MemoryUsedBytes)
		if free := d.MemoryTotalBytes - min(used, d.MemoryTotalBytes); c.MemoryBytes > free {
			return fmt.Errorf("%.1f GiB do not fit GPU %d, which has %.1f GiB free: claim less memory", gib(c.MemoryBytes), gpu, gib(free))
		}
	}
	return nil
}

// reserve makes a free slot of a GPU the caller's own.
func (t *Table) reserve(gpu int, writer uint32) *shmProcess {
	list := &t.file.world.Device[gpu].Processes
	for i := range list {
		if atomic.CompareAndSwapUint32(&list[i].Kind, 0, writer) {
			return &list[i]
		}
	}
	return nil
}

// write fills a slot that is the caller's own.
func (p *shmProcess) write(c Claim) {
	atomic.AddUint32(&p.Generation, 1) // before the rest: a reader looks at it last
	atomic.StoreUint32(&p.PID, uint32(c.PID))
	atomic.StoreUint64(&p.StartTicks, c.Start)
	atomic.StoreUint64(&p.UsedBytes, c.MemoryBytes)
	atomic.StoreUint32(&p.SharePermille, max(1, uint32(round(c.Share*1000))))
	atomic.StoreUint32(&p.GPUInstance, gpuInstanceNone)
	atomic.StoreUint32(&p.ComputeInstance, gpuInstanceNone)
}

// read returns the claim in a slot, if one is there. It reads again when the
// slot changes hands meanwhile.
func (p *shmProcess) read() (c Claim, ok bool) {
	for {
		generation := atomic.LoadUint32(&p.Generation)
		if kind := atomic.LoadUint32(&p.Kind); kind == 0 || kind > shmKindMax {
			return Claim{}, false
		}
		c = Claim{
			PID:         int(atomic.LoadUint32(&p.PID)),
			Start:       atomic.LoadUint64(&p.StartTicks),
			Share:       float64(atomic.LoadUint32(&p.SharePermille)) / 1000,
			MemoryBytes: atomic.LoadUint64(&p.UsedBytes),
		}
		if atomic.LoadUint32(&p.Generation) == generation {
			return c, true
		}
	}
}

// writerKind is the kind of a slot that this process is writing.
func writerKind() (uint32, error) {
	self, err := process.Read(os.Getpid())
	if err != nil {
		return 0, fmt.Errorf("claim a GPU: look for this process in /proc: %w", err)
	}
	return writing(self.ID), nil
}

func writing(p process.ID) uint32 {
	return shmWriting | uint32(p.PID)<<writerShift | uint32(p.Start&writerStart)
}

// writerRuns says whether the claimer that a kind names is still there.
func writerRuns(kind uint32) bool {
	p, err := process.Read(int(kind &^ shmWriting >> writerShift))
	return err == nil && !p.Dead() && writing(p.ID) == kind
}

// Claims lists every claim, by GPU.
func (t *Table) Claims() ([]GPUClaim, error) {
	if err := t.alive(time.Now()); err != nil {
		return nil, err
	}
	var list []GPUClaim
	for gpu := range t.file.world.Devices {
		processes := &t.file.world.Device[gpu].Processes
		for i := range processes {
			if c, ok := processes[i].read(); ok {
				list = append(list, GPUClaim{GPU: int(gpu), Claim: c, Name: c.name()})
			}
		}
	}
	return list, nil
}

func (c Claim) name() string {
	p, err := process.Read(c.PID)
	if err != nil || p.ID != c.id() {
		return ""
	}
	return p.Name
}

// unmap gives a file back that another process owns.
func (s *sharedFile) unmap() error {
	s.world = nil
	return syscall.Munmap(s.bytes)
}

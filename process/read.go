package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"
)

// Info is what the kernel says of a process.
type Info struct {
	ID
	Parent, Group, Session int
	// TTY is the number of the controlling terminal's device, 0 without one.
	TTY int
	// UID is the real user. Mixed says that the process also has the rights of
	// another one, as a setuid program has.
	UID   uint32
	Mixed bool
	// Name is the command's short name as the process itself gives it, without
	// what a terminal would take for more than text.
	Name string
	// State is the kernel's letter: R, S, D, T, t, Z, X, I.
	State   string
	Threads int
	// Cgroup is the one that says most: of version 2, else of systemd, else any
	// that is not the top. Cgroups are all of them, each once.
	Cgroup  string
	Cgroups []string
	Kernel  bool // a kernel thread
	Own     bool // this process, or one that it descends from
}

// Dead says that nothing of the process runs any more, though its parent has
// not taken notice. A process whose first thread alone has ended is not dead.
func (i Info) Dead() bool {
	return (i.State == "Z" || i.State == "X" || i.State == "x") && i.Threads <= 1
}

// Table is every process at one time, by pid.
type Table map[int]Info

// Proc is where the kernel tells of processes; the zero value is /proc.
type Proc struct {
	Root string
	// Self is the pid that is never ours, with its ancestors; this process's by
	// default.
	Self int
}

// Read returns one process, as Proc.Read.
func Read(pid int) (Info, error) { return Proc{}.Read(pid) }

// Runs says whether a process still runs, as Proc.Runs.
func Runs(id ID) bool { return Proc{}.Runs(id) }

// Snapshot returns every process, as Proc.Snapshot.
func Snapshot() (Table, error) { return Proc{}.Snapshot() }

// BootID is the life of the node, as Proc.BootID.
func BootID() (string, error) { return Proc{}.BootID() }

// Folder is where it is: Root, or /proc.
func (p Proc) Folder() string {
	if p.Root == "" {
		return "/proc"
	}
	return p.Root
}

func (p Proc) path(name ...string) string {
	return filepath.Join(append([]string{p.Folder()}, name...)...)
}

func (p Proc) self() int {
	if p.Self != 0 {
		return p.Self
	}
	return os.Getpid()
}

// BootID is the life of the node.
func (p Proc) BootID() (string, error) {
	id, err := os.ReadFile(p.path("sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// Read returns one process, or ErrGone.
func (p Proc) Read(pid int) (Info, error) {
	i, err := p.read(pid)
	if err != nil {
		return Info{}, err
	}
	// What was read must be of one process: the pid may have become another's.
	again, err := p.stat(pid)
	if err != nil {
		return Info{}, err
	}
	if again.ID != i.ID {
		return Info{}, fmt.Errorf("process %s: %w", i.ID, ErrGone)
	}
	p.ancestry(func(q int) { i.Own = i.Own || q == pid })
	return i, nil
}

// Runs says whether a process still runs. It costs one read.
func (p Proc) Runs(id ID) bool {
	i, err := p.stat(id.PID)
	return err == nil && i.ID == id && !i.Dead()
}

// listings bounds how often Snapshot lists /proc.
const listings = 4

// Snapshot returns every process that can be seen and did not end meanwhile. It
// lists until there is none that it has not looked at: of a process that starts
// another and ends as the first list is read, neither would be in it.
func (p Proc) Snapshot() (Table, error) {
	t := Table{}
	seen := map[int]bool{}
	for fresh, n := true, 0; fresh && n < listings; n++ {
		entries, err := os.ReadDir(p.path())
		if err != nil {
			return nil, fmt.Errorf("processes: %w", err)
		}
		fresh = false
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid <= 0 || seen[pid] {
				continue
			}
			seen[pid], fresh = true, true
			switch i, err := p.read(pid); {
			case err == nil:
				t[pid] = i
			case errors.Is(err, ErrGone), errors.Is(err, fs.ErrPermission): // not there, or not shown to this user
			default:
				return nil, err
			}
		}
	}
	t.own(p.self())
	return t, nil
}

// Line returns a process with all that Root looks at: its ancestors, and those
// of its group's and session's leaders. It costs a few reads, not all of /proc.
func (p Proc) Line(pid int) (Table, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	t := Table{}
	for todo := []int{pid}; len(todo) > 0; todo = todo[1:] {
		q := todo[0]
		if _, have := t[q]; have || q <= 0 {
			continue
		}
		i, err := p.read(q)
		switch {
		case err == nil:
			t[q] = i
			todo = append(todo, i.Parent, i.Group, i.Session)
		case q == pid:
			return nil, err
		}
	}
	p.ancestry(func(q int) {
		if i, ok := t[q]; ok {
			i.Own = true
			t[q] = i
		}
	})
	return t, nil
}

// ancestry visits this process and all that it descends from.
func (p Proc) ancestry(visit func(pid int)) {
	for q := p.self(); q > 0; {
		visit(q)
		i, err := p.stat(q)
		if err != nil {
			return
		}
		q = i.Parent
	}
}

// own marks a process and those that it descends from.
func (t Table) own(pid int) {
	for range len(t) {
		i, ok := t[pid]
		if !ok {
			return
		}
		i.Own = true
		t[pid] = i
		pid = i.Parent
	}
}

func (p Proc) read(pid int) (Info, error) {
	i, err := p.stat(pid)
	if err != nil || i.Kernel {
		return i, err
	}
	status, err := p.file(pid, "status")
	if err != nil {
		return i, err
	}
	if of := field(status, "Tgid"); len(of) == 1 && of[0] != strconv.Itoa(pid) {
		return i, fmt.Errorf("%d is a thread of process %s: %w", pid, of[0], ErrGone)
	}
	if err := i.users(status); err != nil {
		return i, fmt.Errorf("process %d: %w", pid, err)
	}
	groups, err := p.file(pid, "cgroup")
	if err != nil {
		return i, err
	}
	i.Cgroup, i.Cgroups = cgroups(groups)
	return i, nil
}

func (p Proc) file(pid int, name string) ([]byte, error) {
	data, err := os.ReadFile(p.path(strconv.Itoa(pid), name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return data, nil
}

// kthread is the flag of a kernel thread in field 9 of stat.
const kthread = 0x00200000

// stat reads what one file tells: all but users and cgroups.
func (p Proc) stat(pid int) (Info, error) {
	data, err := p.file(pid, "stat")
	if err != nil {
		return Info{}, err
	}
	i, err := parseStat(data)
	if err == nil && i.PID != pid {
		err = fmt.Errorf("it is of %d", i.PID)
	}
	if err != nil {
		return Info{}, fmt.Errorf("process %d: stat: %w", pid, err)
	}
	return i, nil
}

// parseStat reads "pid (name) state ppid …"; a name may hold blanks and
// brackets.
func parseStat(data []byte) (Info, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || end < open {
		return Info{}, fmt.Errorf("no name in %q", data)
	}
	// Field n of the manual page is f[n-3].
	f := strings.Fields(string(data[end+1:]))
	if len(f) < 20 {
		return Info{}, fmt.Errorf("%d fields after the name, want 20 or more", len(f))
	}
	i := Info{State: f[0], Name: printable(data[open+1 : end])}
	var err error
	number := func(text string) int {
		n, e := strconv.ParseInt(text, 10, 64)
		err = errors.Join(err, e)
		return int(n)
	}
	i.PID = number(strings.TrimSpace(string(data[:open])))
	i.Parent, i.Group, i.Session, i.TTY = number(f[1]), number(f[2]), number(f[3]), number(f[4])
	i.Kernel = number(f[6])&kthread != 0
	i.Threads = number(f[17])
	start, e := strconv.ParseUint(f[19], 10, 64)
	i.Start = start
	return i, errors.Join(err, e)
}

// printable replaces what a process may put in its name to deceive who reads it.
func printable(name []byte) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, string(name))
}

// field returns what a line of status says; the kernel hides line ends in the
// name, which comes first.
func field(status []byte, name string) []string {
	_, line, _ := bytes.Cut(status, []byte("\n"+name+":"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return strings.Fields(string(line))
}

// users reads the line "Uid: real effective saved file system".
func (i *Info) users(status []byte) error {
	f := field(status, "Uid")
	if len(f) < 3 {
		return errors.New("status has no line Uid")
	}
	uid, err := strconv.ParseUint(f[0], 10, 32)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	i.UID, i.Mixed = uint32(uid), f[1] != f[0] || f[2] != f[0]
	return nil
}

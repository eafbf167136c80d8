package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// keepNotices bounds the files in the folder of notices.
	keepNotices = 200
	// mostTerminals bounds those that a line is written on.
	mostTerminals = 4
	// mostWhy bounds what an order may say, in runes.
	mostWhy = 400
)

// tellOwner lets the owner know before anything is done: by a file that only he can
// read, and by a line on the terminals of the workload. It returns what became
// of that. A notice that fails does not stop the act: it protects others than
// the owner too, and a full disk must not make a node's processes untouchable.
// The receipt says that nobody was told, and the journal keeps it.
func (a *Agent) tellOwner(o *telemetry.Order, p *preemption, members []process.Info) string {
	now := time.Now()
	var told, not []string
	name, err := a.writeNotice(o, p, members[0].UID, now)
	if err != nil {
		not = append(not, err.Error())
	} else {
		told = append(told, "told by "+name)
	}
	line := fmt.Sprintf("\r\n[evenkeel] %s: your processes %s are to end: %s now, KILL in %s. %s Ask: evenkeel explain %s\r\n",
		a.cfg.Node, p.What, p.Signal, time.Duration(p.Grace), sentence(o.Params.Message), plain(o.Decision))
	seen := map[int]bool{}
	for _, i := range members {
		if i.TTY == 0 || seen[i.TTY] || len(seen) >= mostTerminals {
			continue
		}
		if err := a.o.Processes.Say(i, line); err == nil {
			seen[i.TTY] = true
			told = append(told, fmt.Sprintf("on the terminal of %d", i.PID))
		}
	}
	if len(told) == 0 {
		return "could not be told: " + strings.Join(not, "; ")
	}
	if len(not) > 0 {
		return strings.Join(told, " and ") + ", not by a file: " + strings.Join(not, "; ")
	}
	return strings.Join(told, " and ")
}

// writeNotice puts a file there whole or not at all, and takes the oldest away.
func (a *Agent) writeNotice(o *telemetry.Order, p *preemption, uid uint32, now time.Time) (path string, err error) {
	dir := a.cfg.Notices
	if err := openFolder(dir); err != nil {
		return "", fmt.Errorf("notice: %w", err)
	}
	f, err := os.CreateTemp(dir, ".notice-*") // readable by nobody else
	if err != nil {
		return "", fmt.Errorf("notice: %w", err)
	}
	path = filepath.Join(dir, noticeName(now, p.Owner, o.ID))
	_, err = f.WriteString(notice(a.cfg.Node, o, p, now))
	if err == nil && int(uid) != os.Geteuid() {
		err = f.Chown(int(uid), -1)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("notice: %w", errors.Join(err, os.Remove(f.Name())))
	}
	if err := pruneNotices(dir); err != nil {
		a.log.Warn("old notices stay", "err", err)
	}
	if closed := closedTo(uid, dir); closed != "" {
		return "", fmt.Errorf("notice %s is there, but %s is closed to its owner; chmod o+x it", path, closed)
	}
	return path, nil
}

// closedTo is the folder on the way to a file that a user cannot pass.
func closedTo(uid uint32, dir string) string {
	if uid == 0 || int(uid) == os.Geteuid() {
		return ""
	}
	for {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o001 == 0 {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

// noticeName sorts by time; what it is made of cannot lead out of the folder.
func noticeName(now time.Time, owner, step string) string {
	return now.UTC().Format("20060102T150405.000Z") + "-" + tame(owner) + "-" + tame(step) + ".txt"
}

func tame(s string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-@", r)) {
			return r
		}
		return '_'
	}, s[:min(len(s), 80)])
}

var noticeFile = regexp.MustCompile(`^(\d{8}T\d{6}\.\d{3}Z-.*\.txt|\.notice-\d+)$`)

// pruneNotices keeps the newest. What a kill left half-written sorts first.
func pruneNotices(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && noticeFile.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names[:max(len(names)-keepNotices, 0)] {
		if e := os.Remove(filepath.Join(dir, name)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func notice(node string, o *telemetry.Order, p *preemption, now time.Time) string {
	grace := time.Duration(p.Grace)
	rows := [][2]string{
		{"decision", o.Decision + ", step " + o.ID},
		{"why", sentence(o.Params.Message)},
		{"what", p.What},
		{"holds", holdsText(p.Held)},
		{"signal", p.Signal + " at " + now.UTC().Format(time.RFC3339)},
		{"grace", fmt.Sprintf("%s; what is left at %s gets KILL", grace, now.Add(grace).UTC().Format(time.RFC3339))},
		{"more", "evenkeel explain " + o.Decision},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Evenkeel ends processes of %s on %s.\n\n", p.Owner, node)
	for _, r := range rows {
		fmt.Fprintf(&b, "%-9s %s\n", r[0], plain(r[1]))
	}
	return b.String()
}

// sentence is an order's reason, short and harmless on a terminal.
func sentence(why string) string {
	why = strings.TrimSpace(plain(why))
	if r := []rune(why); len(r) > mostWhy {
		why = string(r[:mostWhy]) + "…"
	}
	if why == "" {
		return "No reason was given."
	}
	return why
}

// plain is text without what a terminal would take for more.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// attribution is a Members that makes members of pids alone, after a while; they are
// ours from 1000 on.
type attribution struct {
	takes time.Duration
	lists chan list

	mu     sync.Mutex
	of     map[string]Holders
	listed int
	given  int
	err    error
}

type list struct {
	uuid string
	pids []int
}

func newAttribution(takes time.Duration) *attribution {
	return &attribution{takes: takes, lists: make(chan list, 100), of: map[string]Holders{}}
}

func (a *attribution) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-a.lists:
			select {
			case <-ctx.Done():
				return
			case <-time.After(a.takes):
			}
			a.learn(l)
		}
	}
}

func (a *attribution) learn(l list) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed++
	h := Holders{Version: a.of[l.uuid].Version}
	for _, pid := range l.pids {
		m := &telemetry.Member{}
		m.SetId(fmt.Sprintf("%d@1+boot", pid))
		m.SetName("train")
		m.SetMemoryBytes(uint64(pid) << 20)
		m.SetOwner("alice")
		if pid >= 1000 {
			m.SetWorkload(fmt.Sprintf("proc:node-1/%d@1", pid))
		}
		h.Processes = append(h.Processes, Held{PID: pid, Name: m.GetName(), MemoryBytes: m.GetMemoryBytes()})
		h.Members, h.Why = append(h.Members, m), append(h.Why, fmt.Sprintf("reason %d", pid))
	}
	if !slices.Equal(ids(h.Members), ids(a.of[l.uuid].Members)) || h.Version == 0 {
		h.Version++
	}
	a.of[l.uuid] = h
}

func (a *attribution) Listed(uuid string, processes []Process) {
	l := list{uuid: uuid}
	for _, p := range processes {
		l.pids = append(l.pids, p.PID)
	}
	a.mu.Lock()
	a.given++
	a.mu.Unlock()
	a.lists <- l
}

func (a *attribution) Of(uuid string) Holders {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[uuid]
}

func (a *attribution) Settle(ctx context.Context) {
	for ctx.Err() == nil {
		a.mu.Lock()
		done := a.listed == a.given
		a.mu.Unlock()
		if done {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (a *attribution) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func ids(members []*telemetry.Member) (list []string) {
	for _, m := range members {
		list = append(list, m.GetId())
	}
	return list
}

func startWith(t *testing.T, w *world, m Members) (*Exporter, *recorder) {
	t.Helper()
	sink := &recorder{t: t}
	e, err := New(Options{Node: "node-1", Cluster: "lab", Source: w, Sink: sink, Members: m})
	if err != nil {
		t.Fatal(err)
	}
	return e, runs(t, e, sink)
}

// Members are in every frame of the link part, all of them or nobody, and in the
// next frame when they have changed. No slow part comes without a link part then,
// so that one without members means nobody too.
func TestMembersInFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		m := newAttribution(100 * time.Millisecond)
		_, sink := startWith(t, w, m)
		hold := func(pids ...int) {
			w.gpus[1].set(func(d *device) {
				d.processes = nil
				for _, pid := range pids {
					d.processes = append(d.processes, Process{PID: pid, Instance: NoInstance})
				}
			})
		}
		hold(7, 9)
		// Listed in frames 0, 5, 10, 15 …: what is new is in the frame after.
		ticks(7)
		hold(9)
		ticks(5)
		hold()
		ticks(1)
		w.gpus[0].set(func(d *device) { d.limit = 600 }) // a slow part out of its turn
		ticks(30 - 13)
		if m.given != 2*6 {
			t.Errorf("told %d lists of 12", m.given)
		}
		for i, f := range sink.all() {
			want := []string(nil)
			switch {
			case i >= 1 && i < 11:
				want = []string{"7@1+boot", "9@1+boot"}
			case i >= 11 && i < 16:
				want = []string{"9@1+boot"}
			}
			carries := i%5 == 0 || i == 1 || i == 11 || i == 13 || i == 16
			if f.GetHasLinkPart() != carries {
				t.Errorf("frame %d: link part %v, want %v", i, f.GetHasLinkPart(), carries)
			}
			if slow := i%15 == 0 || i == 13; f.GetHasSlowPart() != slow {
				t.Errorf("frame %d: slow part %v, want %v", i, f.GetHasSlowPart(), slow)
			}
			if !carries {
				want = nil
			}
			if got := ids(gpuOf(t, f, w.gpus[1]).GetMembers()); !slices.Equal(got, want) {
				t.Errorf("frame %d: held by %v, want %v", i, got, want)
			}
			if got := gpuOf(t, f, w.gpus[0]).GetMembers(); len(got) > 0 {
				t.Errorf("frame %d: nobody's GPU is held by %v", i, ids(got))
			}
		}
	})
}

// A device that hangs or is lost keeps the holders that it had; one whose
// processes cannot be listed does too, and nobody is told an empty list.
func TestMembersOfADeviceThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(3)
		m := newAttribution(0)
		_, sink := startWith(t, w, m)
		for _, d := range w.gpus {
			d.set(func(d *device) { d.processes = []Process{{PID: 7, Instance: NoInstance}} })
		}
		ticks(3)
		release := make(chan struct{})
		defer func() {
			close(release)
			synctest.Wait()
		}()
		w.gpus[0].set(func(d *device) { d.hang["Power"] = release })
		w.gpus[1].set(func(d *device) { d.err["*"], d.findErr = gone(Lost), gone(Lost) })
		w.gpus[2].set(func(d *device) { d.err["Processes"] = gone(OtherFault) })
		ticks(30)
		f := sink.all()[30]
		if !f.GetHasLinkPart() || !f.GetHasSlowPart() {
			t.Fatal("this frame should carry all parts")
		}
		for i, d := range w.gpus {
			if got := ids(gpuOf(t, f, d).GetMembers()); !slices.Equal(got, []string{"7@1+boot"}) {
				t.Errorf("GPU %d is held by %v", i, got)
			}
		}
	})
}

// However long it takes to find out whose processes are, no tick waits.
func TestTicksDoNotWaitForMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		_, sink := startWith(t, w, newAttribution(time.Hour))
		ticks(20)
		frames := sink.all()
		if len(frames) != 20 || frames[19].GetGpus()[0].GetFastAgeMs() != 0 {
			t.Errorf("%d frames in 20 s", len(frames))
		}
	})
}

// Once waits for members, not for ever; /metrics names processes with their
// memory, and says when it is not known whose they are.
func TestMembersOnce(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		want  []string
	}{{time.Second, []string{"7@1+boot"}}, {time.Hour, nil}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(1)
			w.gpus[0].processes = []Process{{PID: 7, Instance: NoInstance}}
			m := newAttribution(c.takes)
			m.err = errors.New("no rules")
			e, err := New(Options{Node: "node-1", Source: w, Members: m})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			f, err := e.Once(t.Context())
			if err != nil || time.Since(began) > 10*time.Second || f.GetSequence() != 1 {
				t.Errorf("%v, after %v, frame %d", err, time.Since(began), f.GetSequence())
			}
			if got := ids(f.GetGpus()[0].GetMembers()); !slices.Equal(got, c.want) || !f.GetHasLinkPart() {
				t.Errorf("held by %v, want %v", got, c.want)
			}
			name := fmt.Sprintf(`{node="node-1",pid="7",process="train",uuid="%s"}`, w.gpus[0].id.UUID)
			if v, ok := series(t, e, "gpu_process_memory_bytes"+name); ok != (c.want != nil) || ok && v != 7<<20 {
				t.Errorf("memory of the process: %g, %v", v, ok)
			}
			if v, ok := series(t, e, fmt.Sprintf(`gpu_processes{node="node-1",uuid="%s"}`, w.gpus[0].id.UUID)); !ok || v != 1 {
				t.Errorf("processes: %g, %v", v, ok)
			}
			if v, ok := series(t, e, `evenkeel_reader_success{node="node-1",reader="members"}`); !ok || v != 0 {
				t.Errorf("success: %g, %v", v, ok)
			}
			said := false
			for _, s := range f.GetSamples() {
				said = said || telemetry.ID(s.GetId()) == telemetry.NodeReaderSuccess && s.GetLabels()[0] == "members" && s.GetValue() == 0
			}
			if !said {
				t.Error("the frame does not say that it is not known whose they are")
			}
		})
	}
}

// Doctor says who holds what and why the agent may act on him or not, and that
// nobody does, or that it is not known.
func TestDoctorSaysWhoHoldsWhat(t *testing.T) {
	for _, c := range []struct {
		name  string
		pids  [2][]int // of two GPUs
		err   error    // of Members
		fault Fault    // of the lists
		want  Severity
		says  []string
		not   string
	}{
		{"nobody", [2][]int{}, nil, "", Fine, []string{"no process holds a GPU"}, "held by"},
		{"both", [2][]int{{7}, {7, 1024}}, nil, "", Fine, []string{
			"gpu 0 held by 7 (train) of alice, 0.0 GiB; not the agent's to act on: reason 7",
			"gpu 1 held by 7 (train)", "gpu 1 held by 1024 (train) of alice, 1.0 GiB, part of proc:node-1/1024@1; the agent's to act on by reason 1024",
		}, "no process holds"},
		{"no rules", [2][]int{{7}}, errors.New("let the exporter's user read it"), "", Warning, []string{"warning processes it is not known whose all of them are: let the exporter's user read it", "held by 7"}, ""},
		{"no lists", [2][]int{{7}}, nil, Unsupported, Fine, nil, "process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(2)
				for i, d := range w.gpus {
					for _, pid := range c.pids[i] {
						d.processes = append(d.processes, Process{PID: pid, Instance: NoInstance})
					}
					if c.fault != "" {
						d.err["Processes"] = gone(c.fault)
					}
				}
				facts := sound
				m := newAttribution(time.Millisecond)
				m.err, facts.Members = c.err, m
				var out bytes.Buffer
				got, err := Doctor(t.Context(), w, facts, &out)
				text := strings.Join(strings.Fields(out.String()), " ")
				if err != nil || got != c.want {
					t.Errorf("severity %v, %v; want %v", got, err, c.want)
				}
				for _, s := range c.says {
					if !strings.Contains(text, s) {
						t.Errorf("does not say %q", s)
					}
				}
				if c.not != "" && strings.Contains(strings.ReplaceAll(text, "readers that work", ""), c.not+" ") {
					t.Errorf("says %q", c.not)
				}
				if t.Failed() {
					t.Log(out.String())
				}
			})
		})
	}
}

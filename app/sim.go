package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/sim"
)

// Scenario reads a scenario: a file, or the name of one that comes with the
// program.
func Scenario(name string) (*sim.Scenario, error) {
	data, err := os.ReadFile(name)
	if err == nil {
		s, err := sim.ParseScenario(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return s, nil
	}
	s, byName := sim.LoadScenario(name)
	if byName != nil {
		return nil, fmt.Errorf("scenario %q is neither a file (%w) nor one of %v", name, err, sim.ScenarioNames())
	}
	return s, nil
}

// ServeSim shows one node of a scenario to the NVML stand-in until ctx ends.
// What is read from events, unless that is nil, happens as it comes.
func ServeSim(ctx context.Context, scenario, node, shm string, events io.Reader, log *slog.Logger) error {
	s, err := Scenario(scenario)
	if err != nil {
		return err
	}
	return sim.Serve(ctx, sim.ServeConfig{Scenario: s, Node: node, Path: shm, Events: events, Log: log})
}

// SimClaim is what `sim claim` was asked for.
type SimClaim struct {
	Shm     string
	GPUs    []int
	Share   float64
	Memory  string
	PID     int
	Command []string // instead of PID: claims for itself and becomes this program
}

// ClaimSim makes a running process, or the program that this process becomes, a
// user of simulated GPUs. With a command it returns only when that fails.
func ClaimSim(o SimClaim, out io.Writer) error {
	bytes, err := parseBytes(o.Memory)
	switch {
	case err != nil:
		return command.Usagef("--memory %w", err)
	case len(o.GPUs) == 0:
		return command.Usagef("--gpu: name a GPU by its index, or several as 0,1")
	case o.PID == 0 && len(o.Command) == 0:
		return command.Usagef("name the process that claims: --pid N, or -- COMMAND ARGS to start one")
	case o.PID != 0 && len(o.Command) > 0:
		return command.Usagef("--pid and a command exclude each other; keep one")
	}
	pid, program := o.PID, ""
	if len(o.Command) > 0 {
		if program, err = exec.LookPath(o.Command[0]); err != nil {
			return err
		}
		pid = os.Getpid()
	}
	table, err := sim.OpenTable(o.Shm)
	if err != nil {
		return err
	}
	defer func() { _ = table.Close() }()
	claim := sim.Claim{PID: pid, Share: o.Share, MemoryBytes: bytes}
	if err := table.Claim(o.GPUs, claim); err != nil {
		return err
	}
	if program == "" {
		gpus := strings.ReplaceAll(strings.Trim(fmt.Sprint(o.GPUs), "[]"), " ", ", ")
		_, err := fmt.Fprintf(out, "process %d claims %g of GPU %s, until it ends\n", pid, o.Share, gpus)
		return err
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, o.Command, os.Environ()))
}

// byteUnits are what --memory is written in.
var byteUnits = []struct {
	name  string
	shift uint
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}

func parseBytes(text string) (uint64, error) {
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		n *= float64(uint64(1) << u.shift)
		if err != nil || !(n >= 0 && n < 1<<50) {
			break
		}
		return uint64(math.Round(n)), nil
	}
	return 0, fmt.Errorf("%q: want a size with its unit, such as 10GiB or 512MiB", text)
}

// SimClaims prints who claims the GPUs of a served world.
func SimClaims(shm string, out io.Writer) error {
	table, err := sim.OpenTable(shm)
	if err != nil {
		return err
	}
	defer func() { _ = table.Close() }()
	list, err := table.Claims()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tPID\tPROCESS\tSHARE\tMEMORY")
	for _, c := range list {
		fmt.Fprintf(w, "%d\t%d\t%s\t%.0f%%\t%.1f GiB\n", c.GPU, c.PID, cmp.Or(c.Name, "gone"), 100*c.Share, float64(c.MemoryBytes)/(1<<30))
	}
	return w.Flush()
}

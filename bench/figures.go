package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// figures are what a collector says of itself at a moment.
type figures struct {
	at      time.Time
	dropped map[telemetry.DropReason]float64
	lag     float64 // seconds
	used    Used
	counted bool // CPU and memory are among them
}

// selfPath serves a collector's own metrics without the fleet's, whose scrape
// would cost more than what is measured.
const selfPath = "/metrics/self"

// maxSelfBytes is far above what a process says of itself.
const maxSelfBytes = 4 << 20

// scrape asks a collector for its figures.
func scrape(ctx context.Context, base string) (figures, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fail := func(err error) (figures, error) {
		return figures{}, fmt.Errorf("figures of the collector: %w; give its address by --collector, such as 127.0.0.1:9837", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address(base)+selfPath, nil)
	if err != nil {
		return fail(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fail(fmt.Errorf("%s answers %s", req.URL, resp.Status))
	}
	f, err := readFigures(io.LimitReader(resp.Body, maxSelfBytes))
	if err != nil {
		return fail(err)
	}
	return f, nil
}

func readFigures(r io.Reader) (figures, error) {
	f := figures{at: time.Now(), dropped: map[telemetry.DropReason]float64{}}
	drops, lag := telemetry.RowOf(telemetry.SelfFramesDropped), telemetry.RowOf(telemetry.SelfFrameLag)
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		at := strings.LastIndexByte(sc.Text(), ' ')
		if at < 0 || sc.Text()[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(sc.Text()[at+1:], 64)
		if err != nil {
			return f, fmt.Errorf("line %q has no value", sc.Text())
		}
		name, labels, _ := strings.Cut(sc.Text()[:at], "{")
		switch name {
		case drops.Name:
			_, why, _ := strings.Cut(labels, `"`)
			f.dropped[telemetry.DropReason(strings.TrimSuffix(why, `"}`))] = v
		case lag.Name:
			f.lag = v
		case "process_cpu_seconds_total":
			f.used.CPU, f.counted = time.Duration(v*float64(time.Second)), true
		case "process_resident_memory_bytes":
			f.used.Resident = int64(v)
		}
	}
	if len(f.dropped) == 0 && sc.Err() == nil {
		return f, errors.New("the answer has no " + drops.Name)
	}
	return f, sc.Err()
}

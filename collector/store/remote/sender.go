package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/storage"
	promremote "github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

const (
	// readTarget is about how many samples are read at once.
	readTarget = 250_000
	firstSpan  = 15 * time.Second
	longestGap = 6 * time.Hour
	// hopeless is how many samples, spread over a refused request, are refused
	// one by one before the rest of it is given up too.
	hopeless = 64
)

// sender keeps one remote up to date.
type sender struct {
	of       *Remote
	name     string
	conf     *config.RemoteWriteConfig
	client   promremote.WriteClient
	version2 bool
	settle   time.Duration
	file     markFile
	metrics  *metrics
	log      *slog.Logger
	woken    chan struct{}

	acked   mark
	span    time.Duration // of the next read
	builder *labels.Builder
	// iterator is used again for each series: one read goes on at a time.
	iterator chunkenc.Iterator

	causes sync.Map // of refusals that were logged

	// Under of.mu.
	passed int64   // up to here a commit is late
	behind []int64 // times of late commits, to be read again
}

// nameOf is what a remote is called in metrics and logs.
func nameOf(c *config.RemoteWriteConfig) string {
	if c.Name != "" {
		return c.Name
	}
	return c.URL.Redacted()
}

func newClient(c *config.RemoteWriteConfig) (promremote.WriteClient, error) {
	client, err := promremote.NewWriteClient(nameOf(c), &promremote.ClientConfig{
		URL: c.URL, Timeout: c.RemoteTimeout, HTTPClientConfig: c.HTTPClientConfig,
		SigV4Config: c.SigV4Config, AzureADConfig: c.AzureADConfig, GoogleIAMConfig: c.GoogleIAMConfig,
		Headers: c.Headers, RetryOnRateLimit: c.QueueConfig.RetryOnRateLimit,
		WriteProtoMsg: c.ProtobufMessage, RoundRobinDNS: c.RoundRobinDNS,
	})
	if err != nil {
		return nil, err
	}
	if own, ok := client.(*promremote.Client); ok {
		own.Client.Transport = noting{own.Client.Transport}
	}
	return client, nil
}

func newSender(r *Remote, c *config.RemoteWriteConfig, m *metrics) (*sender, error) {
	name := nameOf(c)
	client, err := newClient(c)
	if err != nil {
		return nil, err
	}
	s := &sender{
		of: r, name: name, conf: c, client: client, metrics: m,
		version2: c.ProtobufMessage == "io.prometheus.write.v2.Request",
		settle:   time.Duration(c.QueueConfig.BatchSendDeadline),
		file:     newMarkFile(r.opts.Store.Dir(), c.Name, c.URL.String()),
		log:      r.opts.Log.With("component", "remote", "remote", name),
		woken:    make(chan struct{}, 1),
		span:     firstSpan, passed: never,
		builder: labels.NewBuilder(labels.EmptyLabels()),
	}
	return s, s.begin(time.Now())
}

// begin finds where to go on.
func (s *sender) begin(now time.Time) error {
	m, err := s.file.read()
	switch {
	case isNew(err):
		m = mark{Acked: now.UnixMilli() - 1}
	case err != nil:
		// What the remote has already it refuses sample by sample, or takes again.
		oldest, errStart := s.of.opts.Store.StartTime()
		if errStart != nil {
			return errors.Join(err, errStart)
		}
		m = mark{Acked: min(oldest, now.UnixMilli()) - 1}
		s.log.Warn("All that the store holds is sent again.", "err", err, "file", s.file.path)
	}
	s.acked = m
	s.passed = m.Acked
	if err := s.file.write(m); err != nil {
		return fmt.Errorf("keep the mark of acknowledged samples: %w", err)
	}
	s.show()
	return nil
}

// took notes a late commit; of.mu is held.
func (s *sender) took(t int64) {
	if t <= s.passed && s.of.opts.Active() {
		s.behind = append(s.behind, t)
		s.metrics.late.counter.WithLabelValues(s.name).Inc()
	}
}

func (s *sender) show() {
	s.metrics.acked.gauge.WithLabelValues(s.name).Set(float64(s.acked.Acked) / 1000)
}

func (s *sender) run(ctx context.Context) {
	poll := time.NewTicker(max(s.settle/4, 50*time.Millisecond))
	defer poll.Stop()
	for {
		for s.step(ctx) {
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-s.woken:
		}
	}
}

// step sends one read of the store, and says whether there may be more.
func (s *sender) step(ctx context.Context) bool {
	if ctx.Err() != nil || !s.of.opts.Active() {
		return false
	}
	if after := s.of.opts.After(); !after.IsZero() {
		s.acked.Acked = max(s.acked.Acked, after.UnixMilli())
	}
	s.lost()
	if !s.again(ctx) {
		return false
	}
	reach := s.of.reach(s, time.Now())
	if reach <= s.acked.Acked {
		return false
	}
	from, to := s.acked.Acked+1, min(reach, s.acked.Acked+s.span.Milliseconds())
	rounds, err := s.read(ctx, from, to)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("The store cannot be read; it is tried again.", "err", err)
		}
		return false
	}
	n := 0
	for _, r := range rounds {
		if n += len(r.samples); !s.send(ctx, r) || !s.advance(r.at) {
			return false
		}
	}
	// The empty rest of the span is read again after a restart, which costs less
	// than a sync of the mark each time.
	s.acked.Acked = to
	s.show()
	switch {
	case n > readTarget:
		s.span = max(s.span/2, time.Second)
	case n < readTarget/2 && to < reach:
		s.span = min(s.span*2, longestGap)
	}
	return to < reach
}

// again sends what was committed late, by itself.
func (s *sender) again(ctx context.Context) bool {
	for {
		s.of.mu.Lock()
		if len(s.behind) == 0 {
			s.of.mu.Unlock()
			return true
		}
		t := s.behind[0]
		s.of.mu.Unlock()
		if t <= s.acked.Acked { // else it is still ahead
			rounds, err := s.read(ctx, t, t)
			if err != nil {
				return false
			}
			for _, r := range rounds {
				if !s.send(ctx, r) {
					return false
				}
			}
		}
		s.of.mu.Lock()
		s.behind = s.behind[1:]
		s.of.mu.Unlock()
	}
}

// lost counts the time that the store gave up before it was sent.
func (s *sender) lost() {
	start, err := s.of.opts.Store.StartTime()
	if err != nil || start > time.Now().UnixMilli()+time.Hour.Milliseconds() {
		return // empty
	}
	if s.acked.Oldest != 0 && start > s.acked.Oldest && start-1 > s.acked.Acked {
		gone := time.Duration(start-1-s.acked.Acked) * time.Millisecond
		s.metrics.lost.counter.WithLabelValues(s.name).Add(gone.Seconds())
		s.log.Error("The store gave up samples that the remote has not acknowledged: raise the retention, or mend the remote.", "span", gone)
		s.acked.Acked = start - 1
	}
	s.acked.Oldest = start
}

// advance keeps that all up to t is acknowledged.
func (s *sender) advance(t int64) bool {
	if t < s.acked.Acked {
		return true
	}
	m := s.acked
	m.Acked = t
	if err := s.file.write(m); err != nil {
		s.log.Error("The mark of acknowledged samples cannot be kept; nothing more is sent until it can.", "err", err)
		return false
	}
	s.acked = m
	s.show()
	return true
}

// collect adds the samples of one series to their times.
func (s *sender) collect(series storage.Series, times map[int64]*round) error {
	lbls, keep := s.relabel(series.Labels())
	if !keep {
		return nil
	}
	it := series.Iterator(s.iterator)
	s.iterator = it
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		v := sample{labels: lbls}
		var at int64
		switch kind {
		case chunkenc.ValFloat:
			at, v.value = it.At()
		case chunkenc.ValHistogram:
			at, v.ints = it.AtHistogram(nil)
		case chunkenc.ValFloatHistogram:
			at, v.floats = it.AtFloatHistogram(nil)
		}
		if kind != chunkenc.ValFloat && !s.conf.SendNativeHistograms {
			continue
		}
		r := times[at]
		if r == nil {
			r = &round{at: at}
			times[at] = r
		}
		r.samples = append(r.samples, v)
	}
	return it.Err()
}

// relabel adds the external labels and obeys write_relabel_configs.
func (s *sender) relabel(in labels.Labels) (labels.Labels, bool) {
	if s.of.opts.External.IsEmpty() && len(s.conf.WriteRelabelConfigs) == 0 {
		return in, true
	}
	s.builder.Reset(in)
	s.of.opts.External.Range(func(l labels.Label) {
		if s.builder.Get(l.Name) == "" {
			s.builder.Set(l.Name, l.Value)
		}
	})
	if !relabel.ProcessBuilder(s.builder, s.conf.WriteRelabelConfigs...) {
		return labels.EmptyLabels(), false
	}
	out := s.builder.Labels()
	return out, !out.IsEmpty()
}

// send sends all samples of one time, as many requests at once as max_shards
// allows; they hold different series. False: not all of it was acknowledged or
// refused for good, because sending ends.
func (s *sender) send(ctx context.Context, r round) bool {
	size := s.conf.QueueConfig.MaxSamplesPerSend
	gate := make(chan struct{}, s.conf.QueueConfig.MaxShards)
	var parts sync.WaitGroup
	var cut atomic.Bool
	for from := 0; from < len(r.samples) && !cut.Load(); from += size {
		part := r.samples[from:min(from+size, len(r.samples))]
		gate <- struct{}{}
		parts.Go(func() {
			defer func() { <-gate }()
			if !s.part(ctx, r.at, part, &attempt{}) {
				cut.Store(true)
			}
		})
	}
	parts.Wait()
	return !cut.Load()
}

// attempt is what became of one request's samples so far.
type attempt struct {
	taken   bool
	refused int
}

// part sends samples until the remote has taken or refused them for good. A
// receiver may refuse a whole request for one of its samples, so a refused one
// is sent in halves. These are every other sample, so that one kind of trouble
// in neighbours does not pass for all.
func (s *sender) part(ctx context.Context, at int64, samples []sample, a *attempt) bool {
	status, err := s.store(ctx, at, samples)
	switch {
	case ctx.Err() != nil || errors.Is(err, errStandby):
		return err == nil
	case err == nil:
		a.taken = true
		s.metrics.sent.counter.WithLabelValues(s.name).Add(float64(len(samples)))
		return true
	case len(samples) == 1, !divisible(status), !a.taken && a.refused >= hopeless:
		a.refused += len(samples)
		s.refuse(status, len(samples), err)
		return true
	}
	var halves [2][]sample
	for i, v := range samples {
		halves[i%2] = append(halves[i%2], v)
	}
	return s.part(ctx, at, halves[0], a) && s.part(ctx, at, halves[1], a)
}

// divisible says whether fewer samples may be taken where all were refused.
func divisible(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (s *sender) refuse(status, n int, err error) {
	why := strconv.Itoa(status)
	if status == 0 {
		why = "message"
	}
	s.metrics.refused.counter.WithLabelValues(s.name, why).Add(float64(n))
	if _, told := s.causes.LoadOrStore(why, true); !told {
		s.log.Error("The remote refused samples for good; they are passed over. Told once per status; the metric goes on counting.", "status", why, "samples", n, "err", err)
	}
}

// errStandby ends sending when another collector speaks for the fleet.
var errStandby = errors.New("another collector speaks for the fleet; not sent")

// errNotTaken is a receiver that answers well and takes nothing.
var errNotTaken = errors.New("the remote answered with success, but says that it wrote nothing: it may not know remote write 2.0; set protobuf_message to prometheus.WriteRequest")

// store sends one request, again and again while its failure may pass.
func (s *sender) store(ctx context.Context, at int64, samples []sample) (status int, err error) {
	body, err := encode(s.version2, at, samples)
	if err != nil {
		return 0, err
	}
	wait := time.Duration(s.conf.QueueConfig.MinBackoff)
	for try := 0; ; try++ {
		if !s.of.opts.Active() {
			return 0, errStandby
		}
		var got answer
		stats, err := s.client.Store(context.WithValue(ctx, answerKey{}, &got), body, try)
		if err == nil && s.version2 && stats.NoDataWritten() {
			err = errNotTaken
		}
		var again promremote.RecoverableError
		if err == nil || !errors.As(err, &again) || ctx.Err() != nil {
			return got.status, err
		}
		s.metrics.retries.counter.WithLabelValues(s.name).Inc()
		if try == 0 {
			s.log.Warn("The remote did not take samples; they are sent again until it does.", "err", err)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(max(wait, min(got.retryAfter, time.Minute))):
		}
		wait = min(wait*2, time.Duration(s.conf.QueueConfig.MaxBackoff))
	}
}

type answerKey struct{}

// answer is what Prometheus's client keeps to itself of a response.
type answer struct {
	status     int
	retryAfter time.Duration
}

// noting notes the answer to whoever sent the request.
type noting struct{ http.RoundTripper }

func (n noting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.RoundTripper.RoundTrip(req)
	if got, ok := req.Context().Value(answerKey{}).(*answer); ok && err == nil {
		got.status = resp.StatusCode
		after := resp.Header.Get("Retry-After")
		if sec, err := strconv.Atoi(after); err == nil {
			got.retryAfter = time.Duration(sec) * time.Second
		} else if when, err := time.Parse(http.TimeFormat, after); err == nil {
			got.retryAfter = time.Until(when)
		}
	}
	return resp, err
}

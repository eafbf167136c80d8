package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	promremote "github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

const (
	stormSeries = 3000
	stormRound  = 250 * time.Millisecond
	stormRounds = 120
	// stormEnv makes this test's binary the sender of a storm: directory, address,
	// message.
	stormEnv = "EVENKEEL_STORM"
)

func TestMain(m *testing.M) {
	if os.Getenv(stormEnv) != "" {
		stormSender()
		return
	}
	os.Exit(m.Run())
}

func open(t testing.TB, dir string) *tsdb.DB {
	t.Helper()
	db, err := openDB(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openDB(dir string) (*tsdb.DB, error) {
	o := tsdb.DefaultOptions()
	o.RetentionDuration = (24 * time.Hour).Milliseconds()
	return tsdb.Open(dir, promslog.NewNopLogger(), nil, o, nil)
}

func remoteConfig(address, message string, perSend int) *config.RemoteWriteConfig {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	c := config.DefaultRemoteWriteConfig
	c.URL = &commonconfig.URL{URL: u}
	if message != "" {
		c.ProtobufMessage = "io.prometheus.write.v2.Request"
	}
	c.RemoteTimeout = model.Duration(5 * time.Second)
	c.QueueConfig.MaxSamplesPerSend = perSend
	c.QueueConfig.BatchSendDeadline = model.Duration(500 * time.Millisecond)
	c.QueueConfig.MinBackoff = model.Duration(20 * time.Millisecond)
	c.QueueConfig.MaxBackoff = model.Duration(200 * time.Millisecond)
	return &c
}

// commit commits a round: each series, some of which end with a marker and begin
// again under another name, as work comes and goes.
func commit(db *tsdb.DB, n, series int, at time.Time) error {
	app := db.Appender(context.Background())
	put := func(i, life int, v float64) error {
		_, err := app.Append(0, labels.FromStrings("__name__", "storm", "i", fmt.Sprint(i), "life", fmt.Sprint(life)), at.UnixMilli(), v)
		return err
	}
	for i := range series {
		life := (n + i) / 20
		if i%10 != 0 {
			life = 0
		}
		if i%10 == 0 && (n+i)%20 == 0 && n > 0 && life > 0 {
			if err := put(i, life-1, math.Float64frombits(value.StaleNaN)); err != nil {
				return err
			}
		}
		if err := put(i, life, float64(n)*1.5+float64(i)); err != nil {
			return err
		}
	}
	return app.Commit()
}

// stormSender is a collector's store until it is killed: it goes on with the
// round after the last, and says each that it has committed.
func stormSender() {
	arg := bytes.Split([]byte(os.Getenv(stormEnv)), []byte(" "))
	dir, address, message := string(arg[0]), string(arg[1]), string(arg[2])
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	db, err := openDB(dir)
	fail(err)
	if message == "1" {
		message = ""
	}
	r, err := Open(Options{
		Store: db, Config: []*config.RemoteWriteConfig{remoteConfig(address, message, 500)},
		Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	fail(err)
	var n int
	_, _ = fmt.Sscan(string(arg[3]), &n)
	for ; ; n++ {
		at := time.Now()
		if n < stormRounds {
			release := r.Hold(at)
			fail(commit(db, n, stormSeries, at))
			r.Took(stormSeries, at)
			release()
		}
		fmt.Printf("%d %d\n", n, r.newest-r.senders[0].acked.Acked)
		time.Sleep(time.Until(at.Add(stormRound)))
	}
}

// points are samples by series: time to the bits of the value.
type points map[string]map[int64]uint64

func (p points) add(series string, at int64, v float64) {
	if p[series] == nil {
		p[series] = map[int64]uint64{}
	}
	p[series][at] = math.Float64bits(v)
}

func committed(t *testing.T, dir string) points {
	t.Helper()
	q, err := open(t, dir).Querier(0, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	return pointsOf(t, q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "storm")))
}

func pointsOf(t *testing.T, set storage.SeriesSet) points {
	t.Helper()
	p := points{}
	for set.Next() {
		s := set.At()
		it := s.Iterator(nil)
		name := s.Labels().Get("i") + "/" + s.Labels().Get("life")
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			p.add(name, at, v)
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return p
}

func readPrometheus(t *testing.T, addr string) points {
	t.Helper()
	u, _ := url.Parse("http://" + addr + "/api/v1/read")
	c, err := promremote.NewReadClient("storm", &promremote.ClientConfig{URL: &commonconfig.URL{URL: u}, Timeout: model.Duration(time.Minute), ChunkedReadLimit: 1 << 26})
	if err != nil {
		t.Fatal(err)
	}
	set, err := c.Read(context.Background(), &prompb.Query{
		StartTimestampMs: 0, EndTimestampMs: time.Now().Add(time.Hour).UnixMilli(),
		Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_EQ, Name: "__name__", Value: "storm"}},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	return pointsOf(t, set)
}

func readVictoria(t *testing.T, addr string) points {
	t.Helper()
	if resp, err := http.Get("http://" + addr + "/internal/force_flush"); err == nil {
		resp.Body.Close()
	}
	resp, err := http.Get("http://" + addr + "/api/v1/export?match[]=storm&reduce_mem_usage=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p := points{}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var line struct {
			Metric     map[string]string
			Values     []*float64
			Timestamps []int64
		}
		if err := json.Unmarshal(bytes.ReplaceAll(lines.Bytes(), []byte("NaN"), []byte("null")), &line); err != nil {
			t.Fatal(err)
		}
		for i, at := range line.Timestamps {
			v := math.Float64frombits(value.StaleNaN)
			if line.Values[i] != nil {
				v = *line.Values[i]
			}
			p.add(line.Metric["i"]+"/"+line.Metric["life"], at, v)
		}
	}
	return p
}

type receiver struct {
	name, message string
	asked         bool // to end, instead of being killed
	start         func(t *testing.T) (p *storetest.Program, write string, read func(*testing.T) points)
}

func prometheusReceiver(t *testing.T, binary string) (*storetest.Program, string, func(*testing.T) points) {
	addr, dir := storetest.FreeAddr(t), t.TempDir()
	conf := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(conf, []byte("global: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := storetest.Start(t, binary, "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr, "--web.enable-remote-write-receiver")
	p.Ready("http://" + addr + "/-/ready")
	return p, "http://" + addr + "/api/v1/write", func(t *testing.T) points { p.Ready("http://" + addr + "/-/ready"); return readPrometheus(t, addr) }
}

func receivers() []receiver {
	return []receiver{
		{"prometheus 2, 1.0", "1", false, func(t *testing.T) (*storetest.Program, string, func(*testing.T) points) {
			return prometheusReceiver(t, storetest.Find(t, "prometheus"))
		}},
		{"prometheus 3, 2.0", "2", false, func(t *testing.T) (*storetest.Program, string, func(*testing.T) points) {
			return prometheusReceiver(t, storetest.Find(t, filepath.Join(prometheus3(t), "prometheus")))
		}},
		{"victoria-metrics, 1.0", "1", true, func(t *testing.T) (*storetest.Program, string, func(*testing.T) points) {
			addr := storetest.FreeAddr(t)
			p := storetest.Start(t, storetest.Find(t, "victoria-metrics"), "-storageDataPath="+t.TempDir(), "-httpListenAddr="+addr, "-retentionPeriod=1")
			p.Ready("http://" + addr + "/health")
			return p, "http://" + addr + "/api/v1/write", func(t *testing.T) points { p.Ready("http://" + addr + "/health"); return readVictoria(t, addr) }
		}},
	}
}

// prometheus3 is where scripts/test built the version in go.mod.
func prometheus3(t *testing.T) string {
	if dir := os.Getenv("EVENKEEL_PROMETHEUS3"); dir != "" {
		return dir
	}
	cache, _ := os.UserCacheDir()
	found, _ := filepath.Glob(filepath.Join(cache, "evenkeel/tools/prometheus@*"))
	if len(found) == 0 {
		t.Skip("no prometheus of the version in go.mod: run scripts/test")
	}
	return found[len(found)-1]
}

// TestStorm kills both sides again and again while rounds are committed: in the
// end the receiver holds every sample that was committed, and no other.
func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("a storm takes a minute; run without -short")
	}
	for _, rc := range receivers() {
		t.Run(rc.name, func(t *testing.T) {
			t.Parallel()
			program, write, read := rc.start(t)
			dir := t.TempDir()
			rnd := rand.New(rand.NewPCG(1, 2))
			next, killsOfReceiver, killsOfSender := 0, 0, 0
			for done := false; !done; {
				s := startSender(t, dir, write, rc.message, next)
				last := next + 5 + rnd.IntN(15)
				for n := range s.rounds {
					next = n.n + 1
					if next < stormRounds && n.n%7 == 3 && rnd.IntN(2) == 0 {
						// VictoriaMetrics acknowledges what it holds in memory alone, so that
						// a killed one loses it; it is asked to end.
						if rc.asked {
							program.Stop()
						} else {
							program.Kill()
						}
						time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
						program.Again()
						killsOfReceiver++
					}
					if n.n >= last && next < stormRounds {
						break
					}
					if next > stormRounds+8 && n.behind <= 0 || next > stormRounds+240 {
						done = true
						break
					}
				}
				time.Sleep(time.Duration(rnd.IntN(int(stormRound))))
				s.kill()
				killsOfSender++
			}
			want, got := committed(t, dir), read(t)
			t.Logf("%d kills of the receiver, %d of the sender", killsOfReceiver, killsOfSender)
			compare(t, want, got)
		})
	}
}

func compare(t *testing.T, want, got points) {
	t.Helper()
	all, missing, wrong, more, stale := 0, 0, 0, 0, 0
	at := map[int64]int{}
	for name, samples := range want {
		for ts, v := range samples {
			all++
			if v == value.StaleNaN {
				stale++
			}
			g, ok := got[name][ts]
			switch {
			case !ok:
				missing++
				at[ts]++
			case g != v:
				wrong++
			}
		}
	}
	for name, samples := range got {
		for ts := range samples {
			if _, ok := want[name][ts]; !ok {
				more++
			}
		}
	}
	if all < stormSeries*stormRounds*9/10 || stale == 0 {
		t.Errorf("only %d samples, %d markers were committed", all, stale)
	}
	if missing+wrong+more > 0 {
		t.Errorf("of %d samples %d are missing %v, %d have another value, %d were never committed", all, missing, at, wrong, more)
	}
	t.Logf("%d samples in %d series, %d of them markers of staleness", all, len(want), stale)
}

type told struct {
	n      int
	behind int64 // milliseconds of what is committed
}

type senderProcess struct {
	cmd    *exec.Cmd
	rounds chan told
}

func startSender(t *testing.T, dir, write, message string, next int) *senderProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", stormEnv, dir, write, message, next))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &senderProcess{cmd, make(chan told, 1000)}
	go func() {
		defer close(s.rounds)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var n told
			if _, err := fmt.Sscan(lines.Text(), &n.n, &n.behind); err == nil {
				s.rounds <- n
			}
		}
	}()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("sender: %s", said.Bytes())
		}
	})
	return s
}

func (s *senderProcess) kill() {
	_ = s.cmd.Process.Kill()
	for range s.rounds {
	}
	_ = s.cmd.Wait()
}

package storetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Alertmanager is Debian's, with one receiver: what it tells people.
type Alertmanager struct {
	*Program
	Addr string
	mu   sync.Mutex
	told []Notice
}

// Notice is one alert of one notification.
type Notice struct {
	Status      string // firing or resolved
	Labels      map[string]string
	Annotations map[string]string
	StartsAt    time.Time
}

// templates is where Debian's build looks for them.
const templates = "/usr/share/prometheus/alertmanager/default.tmpl"

// StartAlertmanager starts it; it notifies at once, of every alert by itself.
func StartAlertmanager(t testing.TB) *Alertmanager {
	t.Helper()
	binary := Find(t, "prometheus-alertmanager")
	if _, err := os.Stat(templates); err != nil {
		t.Skip("prometheus-alertmanager starts only with its templates: run scripts/install test as root")
	}
	a := &Alertmanager{Addr: FreeAddr(t)}
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct{ Alerts []Notice }
		if json.NewDecoder(r.Body).Decode(&body) == nil {
			a.mu.Lock()
			a.told = append(a.told, body.Alerts...)
			a.mu.Unlock()
		}
	}))
	t.Cleanup(hook.Close)
	dir := t.TempDir()
	conf := filepath.Join(dir, "alertmanager.yml")
	text := fmt.Sprintf(`route: {receiver: people, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}
receivers: [{name: people, webhook_configs: [{url: '%s', send_resolved: true}]}]
`, hook.URL)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Program = Start(t, binary, "--config.file="+conf, "--storage.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+a.Addr, "--cluster.listen-address=")
	a.Ready("http://" + a.Addr + "/-/ready")
	return a
}

// Told are the notices of one alert, in the order of their coming.
func (a *Alertmanager) Told(alert string) []Notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Notice
	for _, n := range a.told {
		if n.Labels["alertname"] == alert {
			out = append(out, n)
		}
	}
	return out
}

// Statuses are those of the notices of one alert, as one word each.
func (a *Alertmanager) Statuses(alert string) string {
	var words []string
	for _, n := range a.Told(alert) {
		words = append(words, n.Status)
	}
	return strings.Join(words, " ")
}

// Held is an alert that Alertmanager has.
type Held struct {
	Labels      map[string]string
	Annotations map[string]string
	StartsAt    time.Time
}

// Active are the alerts of the name that it holds now.
func (a *Alertmanager) Active(t testing.TB, alert string) []Held {
	t.Helper()
	resp, err := http.Get("http://" + a.Addr + "/api/v2/alerts?active=true&filter=alertname%3D" + alert)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []Held
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

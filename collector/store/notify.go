package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	_ "github.com/prometheus/prometheus/discovery/dns"  // dns_sd_configs
	_ "github.com/prometheus/prometheus/discovery/file" // file_sd_configs
	"github.com/prometheus/prometheus/notifier"
)

// alertQueue bounds what waits for one Alertmanager; the oldest goes first.
const alertQueue = 10_000

// errStandby ends what was queued while this process still spoke for the fleet:
// another one does now, and a "resolved" of ours would contradict it.
var errStandby = errors.New("another collector speaks for the fleet; not sent")

// notifications send alerts to the Alertmanagers of the document, as Prometheus
// does.
type notifications struct {
	manager   *notifier.Manager
	discovery *discovery.Manager
	stop      context.CancelFunc // of the discovery
	sets      map[string]discovery.Configs
}

func newNotifications(conf *config.Config, active func() bool, reg prometheus.Registerer, log *slog.Logger) (*notifications, error) {
	log = log.With("component", "notifier")
	n := &notifications{sets: map[string]discovery.Configs{}}
	n.manager = notifier.NewManager(&notifier.Options{
		QueueCapacity: alertQueue,
		// Whoever starts next sends again what still holds. Draining would keep
		// the end of this process waiting for an Alertmanager that is away.
		DrainOnShutdown: false,
		Registerer:      reg,
		Do: func(ctx context.Context, client *http.Client, req *http.Request) (*http.Response, error) {
			if !active() {
				return nil, errStandby
			}
			return client.Do(req.WithContext(ctx))
		},
	}, model.UTF8Validation, log)
	if err := n.manager.ApplyConfig(conf); err != nil {
		return nil, fmt.Errorf("alerting: %w", err)
	}
	metrics, err := discovery.CreateAndRegisterSDMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("alerting: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	if n.discovery = discovery.NewManager(ctx, log, reg, metrics, discovery.Name("notify"), discovery.Updatert(time.Second)); n.discovery == nil {
		stop()
		return nil, errors.New("alerting: discovery did not start; its log says why")
	}
	for name, c := range conf.AlertingConfig.AlertmanagerConfigs.ToMap() {
		n.sets[name] = c.ServiceDiscoveryConfigs
	}
	return n, nil
}

// run discovers and sends until ctx ends.
func (n *notifications) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { _ = n.discovery.Run() }) // its error is that it was ended
	if err := n.discovery.ApplyConfig(n.sets); err != nil {
		panic(err) // it never fails in this version
	}
	parts.Go(func() { n.manager.Run(n.discovery.SyncCh()) })
	<-ctx.Done()
	n.manager.Stop()
	n.stop()
	parts.Wait()
}

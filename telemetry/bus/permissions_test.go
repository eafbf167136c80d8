package bus_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

var update = flag.Bool("update", false, "write docs/nats.conf anew")

// TestPermissionsOfANodeNameOnlyIt makes sure that no right of a node's users
// reaches another node, whatever the name.
func TestPermissionsOfANodeNameOnlyIt(t *testing.T) {
	for _, node := range []string{"node1", "Rack-7.Node 3", "*", ">", "a.b.c", "_", "=2A"} {
		for _, user := range []string{telemetry.ExporterUser(node), telemetry.AgentUser(node)} {
			r, err := bus.Permissions(user)
			if err != nil {
				t.Fatalf("%s: %v", user, err)
			}
			own := "." + telemetry.EncodeNode(node)
			for _, s := range append(slices.Clone(r.Publish), r.Subscribe...) {
				if inbox, is := strings.CutSuffix(s, ".>"); is && inbox == telemetry.InboxPrefix(user) {
					continue
				}
				if !strings.HasSuffix(s, own) || strings.ContainsAny(s, "*> ") {
					t.Errorf("%s may use %q", user, s)
				}
			}
		}
	}
}

func TestPermissionsRefuseUnknownUsers(t *testing.T) {
	for _, user := range []string{"", "root", "x.", "x.Node", "y.node1", "x.node1.", "a.*", "x.>", "collector.node1", "collector.64", "collector.31-0", "collector.0-15_16-31", "collector.", "rebalancer.0-31"} {
		if _, err := bus.Permissions(user); err == nil {
			t.Errorf("%q has rights", user)
		}
	}
}

func TestOnlyTheRebalancerGivesOrdersAndWritesTheJournal(t *testing.T) {
	for _, user := range []string{bus.UserCollector, bus.UserReader, telemetry.ExporterUser("n"), telemetry.AgentUser("n"), bus.UserRebalancer} {
		r, err := bus.Permissions(user)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{telemetry.AllOrders, telemetry.AllJournal} {
			if got := slices.Contains(r.Publish, s); got != (user == bus.UserRebalancer) {
				t.Errorf("%s may publish %s: %v", user, s, got)
			}
		}
		for _, s := range r.Publish {
			if s == ">" || strings.HasPrefix(s, "$JS.API.>") || strings.Contains(s, "STREAM.DELETE") || strings.Contains(s, "STREAM.PURGE") || strings.Contains(s, "STREAM.UPDATE") {
				t.Errorf("%s may publish %s", user, s)
			}
		}
		if len(r.Publish) == 0 || len(r.Subscribe) == 0 {
			t.Errorf("%s has an empty list, which the server takes for everything", user)
		}
	}
}

func TestServerConfigRefuses(t *testing.T) {
	good := bus.ServerOptions{StoreDir: "/store", Users: []bus.User{{Name: bus.UserReader, Password: "$2a$11$abc"}}}
	if conf, err := bus.ServerConfig(good); err != nil || !strings.Contains(conf, `password: "$2a$11$abc"`) || !strings.Contains(conf, "sync_interval: always") {
		t.Fatalf("%v\n%s", err, conf)
	}
	for name, change := range map[string]func(*bus.ServerOptions){
		"no store":         func(o *bus.ServerOptions) { o.StoreDir = "" },
		"no users":         func(o *bus.ServerOptions) { o.Users = nil },
		"quote in a value": func(o *bus.ServerOptions) { o.Users = []bus.User{{Name: bus.UserReader, Password: "a\" }"}} },
		"line break":       func(o *bus.ServerOptions) { o.StoreDir = "/a\nlisten: 0.0.0.0" },
		"unknown user":     func(o *bus.ServerOptions) { o.Users = []bus.User{{Name: "root", Password: "p"}} },
		"no secret":        func(o *bus.ServerOptions) { o.Users = []bus.User{{Name: bus.UserReader}} },
		"two secrets":      func(o *bus.ServerOptions) { o.Users[0].NKey = "UABC" },
		"no NKey":          func(o *bus.ServerOptions) { o.Users = []bus.User{{Name: bus.UserReader, NKey: "UABC"}} },
		"key without cert": func(o *bus.ServerOptions) { o.KeyFile = "/key" },
		"cluster of nobody": func(o *bus.ServerOptions) {
			o.Name, o.Cluster = "a", &bus.ClusterOptions{Name: "c", User: "u", Password: "p"}
		},
		"cluster without a secret": func(o *bus.ServerOptions) {
			o.Name, o.Cluster = "a", &bus.ClusterOptions{Name: "c", Routes: []string{"h:6222"}}
		},
		"server of a cluster without a name": func(o *bus.ServerOptions) {
			o.Cluster = &bus.ClusterOptions{Name: "c", Routes: []string{"h:6222"}, User: "u", Password: "p"}
		},
	} {
		o := good
		o.Users = slices.Clone(good.Users)
		change(&o)
		if conf, err := bus.ServerConfig(o); err == nil {
			t.Errorf("%s: no error\n%s", name, conf)
		}
	}
}

// TestDocumentedServerConfig keeps docs/nats.conf what ServerConfig renders.
func TestDocumentedServerConfig(t *testing.T) {
	const file = "../../docs/nats.conf"
	o := bus.ServerOptions{Name: "evenkeel", Host: "0.0.0.0", StoreDir: "/var/lib/nats"}
	for _, name := range []string{bus.UserCollector, bus.UserRebalancer, bus.UserReader, telemetry.ExporterUser("gpu-01"), telemetry.AgentUser("gpu-01")} {
		o.Users = append(o.Users, bus.User{Name: name, Password: "change-me-" + name})
	}
	conf, err := bus.ServerConfig(o)
	if err != nil {
		t.Fatal(err)
	}
	want := "# A NATS server for Evenkeel with one GPU node, gpu-01: nats-server -c nats.conf\n" +
		"# Each further node needs its own two users like the last two here, with * in place\n" +
		"# of the partition, which follows from the name (59 for gpu-01). Change every\n" +
		"# password (a bcrypt hash does), and add TLS where the network is not yours alone.\n" + conf
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what ServerConfig renders; go test ./telemetry/bus -run Documented -update writes it", file)
	}
}

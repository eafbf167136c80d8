package bus

import (
	"fmt"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Users beside the two of each node (telemetry.ExporterUser, AgentUser). The
// collectors of a share may be collector.<partitions>, such as collector.0-31.
const (
	UserCollector  = "collector"
	UserRebalancer = "rebalancer"
	UserReader     = "reader"
)

// User is somebody whom the server knows.
type User struct {
	Name string
	// Password in plain text or as a bcrypt hash; or the public NKey (U…).
	Password string
	NKey     string
}

// nothing is a subject without use: the server takes an empty list for "all".
const nothing = "ek.nothing"

// Rights are the subjects a user may use; what is not listed is refused.
type Rights struct {
	Publish, Subscribe []string
	// Answers allows one answer to each request that reached the user, within
	// this time; zero allows none.
	Answers time.Duration
}

// Permissions returns the rights of a user. They are the identity of a node:
// it can speak for itself and for no other.
func Permissions(user string) (Rights, error) {
	role, token, of := strings.Cut(user, ".")
	inbox := telemetry.InboxPrefix(user) + ".>"
	if of && role == UserCollector {
		share, err := telemetry.ParsePartitionToken(token)
		if err != nil {
			return Rights{}, fmt.Errorf("bus user %q: %w", user, err)
		}
		return shareRights(share, inbox), nil
	}
	if of {
		node, err := telemetry.DecodeNode(token)
		if err != nil {
			return Rights{}, fmt.Errorf("bus user %q: %w", user, err)
		}
		return nodeRights(user, role, node, inbox)
	}
	switch role {
	case UserCollector:
		return Rights{
			Publish: append(append(streamRights(), telemetry.AllObservations, telemetry.ControlSubject("*"), telemetry.InventorySubject(telemetry.SourceFile)),
				collectorLeases(LeaseCollector, LeaseCollector+".*")...),
			Subscribe: []string{telemetry.AllFrames, telemetry.AllBackfill, telemetry.AllObservations, telemetry.AllEvents, telemetry.AllReceipts, inbox},
		}, nil
	case UserRebalancer:
		return Rights{
			Publish: append(streamRights(), "$JS.API.STREAM.MSG.GET."+StreamJournal,
				telemetry.AllOrders, telemetry.AllJournal, telemetry.AllInventories, leaseKey(LeaseRebalancer)),
			Subscribe: []string{telemetry.AllObservations, telemetry.AllEvents, telemetry.AllReceipts, telemetry.ControlSubject("*"), inbox},
			Answers:   time.Minute,
		}, nil
	case UserReader:
		return Rights{Publish: []string{nothing}, Subscribe: []string{telemetry.AllFrames, telemetry.AllBackfill, telemetry.AllObservations,
			telemetry.AllEvents, telemetry.AllReceipts, telemetry.AllInventories, telemetry.AllJournal}}, nil
	}
	return Rights{}, unknownUser(user)
}

// shareRights are those of a collector that serves a share of the fleet and
// connects as collector.<share>: it cannot speak for the rest.
func shareRights(share telemetry.PartitionSet, inbox string) Rights {
	r := Rights{
		Publish:   append(append(streamRights(), telemetry.ControlSubject("*")), collectorLeases(CollectorLease(share))...),
		Subscribe: []string{telemetry.AllEvents, telemetry.AllReceipts, inbox},
	}
	for p := range share.All() {
		observations := telemetry.PartitionWildcard(telemetry.FamilyObservation, p)
		r.Publish = append(r.Publish, observations)
		r.Subscribe = append(r.Subscribe, telemetry.PartitionWildcard(telemetry.FamilyFrame, p), telemetry.PartitionWildcard(telemetry.FamilyBackfill, p), observations)
	}
	return r
}

// collectorLeases are the keys to hold leases with these names and to wait for
// them.
func collectorLeases(names ...string) []string {
	var keys []string
	for _, name := range names {
		keys = append(keys, leaseKey(name), leaseKey(waitingPrefix+name))
	}
	return keys
}

func nodeRights(user, role, node, inbox string) (Rights, error) {
	switch role {
	case "x":
		return Rights{
			Publish: []string{
				telemetry.PartitionSubject(telemetry.FamilyFrame, node),
				telemetry.PartitionSubject(telemetry.FamilyBackfill, node),
				telemetry.EventSubject(node),
			},
			Subscribe: []string{inbox},
		}, nil
	case "a":
		return Rights{
			Publish:   []string{telemetry.ReceiptSubject(node)},
			Subscribe: []string{telemetry.OrderSubject(node), inbox},
			Answers:   time.Minute,
		}, nil
	}
	return Rights{}, unknownUser(user)
}

func unknownUser(user string) error {
	return fmt.Errorf("bus user %q: want x.<node>, a.<node>, %[2]s, %[2]s.<partitions>, %[3]s or %[4]s", user, UserCollector, UserRebalancer, UserReader)
}

// streamRights let a user make and read our streams, but not empty, change or
// remove them.
func streamRights() []string {
	rights := []string{"$JS.API.INFO"}
	for _, s := range []string{StreamEvents, StreamReceipts, StreamJournal, StreamInventory, streamLease} {
		rights = append(rights,
			"$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.CREATE."+s,
			"$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.INFO."+s+".*",
			"$JS.API.CONSUMER.MSG.NEXT."+s+".*", "$JS.API.CONSUMER.DELETE."+s+".*",
			"$JS.API.DIRECT.GET."+s+".>")
	}
	return rights
}

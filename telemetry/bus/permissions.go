package bus

import (
	"fmt"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Users beside the two of each node (telemetry.ExporterUser, AgentUser).
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
			Publish: append(streamRights(),
				telemetry.AllObservations, telemetry.ControlSubject("*"), leaseSubject(LeaseCollector)),
			Subscribe: []string{telemetry.AllFrames, telemetry.AllBackfill, telemetry.AllObservations, telemetry.AllEvents, telemetry.AllReceipts, inbox},
		}, nil
	case UserRebalancer:
		return Rights{
			Publish: append(streamRights(), "$JS.API.STREAM.MSG.GET."+StreamJournal,
				telemetry.AllOrders, telemetry.AllJournal, telemetry.AllInventories, leaseSubject(LeaseRebalancer)),
			Subscribe: []string{telemetry.AllObservations, telemetry.AllEvents, telemetry.AllReceipts, telemetry.ControlSubject("*"), inbox},
			Answers:   time.Minute,
		}, nil
	case UserReader:
		return Rights{Publish: []string{nothing}, Subscribe: []string{telemetry.AllFrames, telemetry.AllBackfill, telemetry.AllObservations,
			telemetry.AllEvents, telemetry.AllReceipts, telemetry.AllInventories, telemetry.AllJournal}}, nil
	}
	return Rights{}, unknownUser(user)
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
	return fmt.Errorf("bus user %q: want x.<node>, a.<node>, %s, %s or %s", user, UserCollector, UserRebalancer, UserReader)
}

func leaseSubject(name string) string { return (&Lease{name: name}).subject() }

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

package telemetry

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Partitions is the number of partitions of the node space. It is fixed: to
// change it would move every node.
const Partitions = 64

// Root is the first two tokens of every subject.
const Root = "ek.v1"

// EncodeNode makes a node name a subject token: [a-z0-9_-] is kept, any other
// byte becomes =XX.
func EncodeNode(name string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// DecodeNode undoes EncodeNode and refuses what it cannot have made.
func DecodeNode(token string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '=' {
			b.WriteByte(token[i])
			continue
		}
		if i+2 >= len(token) {
			return "", fmt.Errorf("node token %q: cut escape", token)
		}
		v, err := strconv.ParseUint(token[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("node token %q: bad escape", token)
		}
		b.WriteByte(byte(v))
		i += 2
	}
	if name := b.String(); name != "" && EncodeNode(name) == token {
		return name, nil
	}
	return "", fmt.Errorf("node token %q is not in its canonical form", token)
}

// Partition is the partition of a node.
func Partition(node string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(EncodeNode(node)))
	return int(h.Sum32() % Partitions)
}

// Subject families with a partition token.
const (
	FamilyFrame       = "frame"
	FamilyObservation = "obs"
	FamilyBackfill    = "backfill"
)

// PartitionSubject is ek.v1.<family>.<partition>.<node>.
func PartitionSubject(family, node string) string {
	return fmt.Sprintf("%s.%s.%d.%s", Root, family, Partition(node), EncodeNode(node))
}

// EventSubject is where a node's events go.
func EventSubject(node string) string { return Root + ".event." + EncodeNode(node) }

// OrderSubject is where a node's agent listens.
func OrderSubject(node string) string { return Root + ".order." + EncodeNode(node) }

// ReceiptSubject is where a node's agent answers.
func ReceiptSubject(node string) string { return Root + ".receipt." + EncodeNode(node) }

// InventorySubject is where a source puts its full snapshot.
func InventorySubject(source string) string { return Root + ".inv." + EncodeNode(source) }

// JournalSubject is where records of a topic go.
func JournalSubject(topic Topic) string { return Root + ".journal." + string(topic) }

// ControlSubject is where the leader answers a verb.
func ControlSubject(verb string) string { return Root + ".ctl." + verb }

// Wildcards for readers of whole families.
const (
	AllFrames       = Root + ".frame.*.*"
	AllObservations = Root + ".obs.*.*"
	AllBackfill     = Root + ".backfill.*.*"
	AllEvents       = Root + ".event.*"
	AllReceipts     = Root + ".receipt.*"
	AllOrders       = Root + ".order.*"
	AllInventories  = Root + ".inv.*"
	AllJournal      = Root + ".journal.*"
)

// SubjectNode returns the node a subject belongs to: its last token. A frame
// on the wrong partition is foreign too, since a reader of that range would
// otherwise see a node twice.
func SubjectNode(subject string) (string, error) {
	tokens := strings.Split(subject, ".")
	if len(tokens) < 4 || tokens[0]+"."+tokens[1] != Root {
		return "", drop(DropForeign, "subject %q", subject)
	}
	want := 4
	if f := tokens[2]; f == FamilyFrame || f == FamilyObservation || f == FamilyBackfill {
		want = 5
	}
	if len(tokens) != want {
		return "", drop(DropForeign, "subject %q has %d tokens, want %d", subject, len(tokens), want)
	}
	node, err := DecodeNode(tokens[len(tokens)-1])
	if err != nil {
		return "", drop(DropForeign, "subject %q: %v", subject, err)
	}
	if len(tokens) == 5 && tokens[3] != strconv.Itoa(Partition(node)) {
		return "", drop(DropForeign, "subject %q: node belongs to partition %d", subject, Partition(node))
	}
	return node, nil
}

// ExporterUser is the bus user of a node's exporter: frames, events, backfill.
func ExporterUser(node string) string { return "x." + EncodeNode(node) }

// AgentUser is the bus user of a node's agent: orders in, receipts out.
func AgentUser(node string) string { return "a." + EncodeNode(node) }

// InboxPrefix keeps one user's replies from the others.
func InboxPrefix(user string) string { return "_INBOX_" + strings.ReplaceAll(user, ".", "_") }

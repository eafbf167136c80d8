// Package remote writes the store's samples to other databases, with Prometheus's
// client and messages.
//
// It reads the store itself instead of following its log: what was committed
// after the last acknowledged time, one timestamp at a time. A timestamp is
// acknowledged as a whole before the next is begun, and the mark of it is synced
// to disk. So nothing waits in memory, each series arrives in order, and after a
// restart of either side at most one timestamp is sent again, which receivers
// take as the same samples.
//
// In: the store, remotes as prometheus.yml names them, who speaks for the fleet.
// Out: remote write 1.0 and 2.0, a mark per remote in the store's folder.
// Never: delays a commit, sends what another collector has sent, passes over a
// sample without counting it.
//
// To add a message format: message.go.
package remote

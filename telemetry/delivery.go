package telemetry

import "errors"

// Why a request brought nothing. The first two come from the bus at once,
// without a wait: the server knows that nobody listens.
var (
	// ErrNoAgent means that no agent listens for the node's orders.
	ErrNoAgent = errors.New("no agent listens for orders of this node")
	// ErrNoLeader means that no rebalancer leads, so nobody answers a verb.
	ErrNoLeader = errors.New("no rebalancer leads at the moment")
	// ErrRefused means that the leader was asked and said no; the text says why.
	ErrRefused = errors.New("refused by the leader")
)

package rebalancer

// What a person can say about a decision.
const (
	VerdictApprove = "approve"
	VerdictReject  = "reject"
	VerdictUndo    = "undo"
)

// Package node is the hand that reaches devices: it turns steps into signed
// orders for the agents of the nodes.
//
// In: steps, a signing key, an Orders port, receipts from the bus. Out: orders,
// repeated until there is a receipt; receipts. Never: touches a device, decides.
//
// Guarantees: one step is one order id, however often it is sent, so the
// agent's ledger makes it at most once; the send time of each repetition is
// its own, so that the agent can judge its clock. To observe a step is to send
// its order with a time long over: an agent answers from its ledger and begins
// nothing that has expired. A step that takes long expires by when it must be
// begun, and is asked for until it has ended.
//
// To add a step kind: one line in kinds, what the View must show for it in Can
// and, if it takes long, its time in rebalancer.RunTime.
package node

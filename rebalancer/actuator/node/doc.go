// Package node is the hand that reaches devices: it turns steps into signed
// orders for the agents of the nodes.
//
// In: steps, a signing key, an Orders port, receipts from the bus. Out: orders,
// repeated until there is a receipt; receipts. Never: touches a device, decides.
//
// Guarantees: one step is one order id, however often it is sent, so the
// agent's ledger makes it at most once; the send time of each repetition is
// its own, so that the agent can judge its clock.
//
// To add a step kind: one line in kinds, and what the View must show for it in
// Can.
package node

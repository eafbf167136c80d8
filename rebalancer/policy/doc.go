// Package policy holds the policies of the rebalancer, one file each, and
// their defaults.
//
// In: a Scene (the View and what the journal adds to it). Out: sightings,
// sized proposals, reviews of held acts. Never: I/O, a clock, an act.
//
// Guarantees: pure; the same Scene gives the same answer, in the order of the
// View; formulas are stated where they are, with the constants they use.
//
// To add a policy: a file here, a case in New, its default in defaults.yaml.
package policy

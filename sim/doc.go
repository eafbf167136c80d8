// Package sim is the seeded world of GPU nodes: products with their power,
// clocks and heat, rows of racks that share their air, jobs that load the GPUs,
// and the faults that befall them. One engine serves the demo, the tests and
// the NVML stand-in.
//
// In: a scenario (YAML, strict), a seed, the time that passes, power limits,
// processes of this machine that claim a share of a GPU.
// Out: readings of every GPU, the inventory, events, useful work done.
// Never: the clock, in the engine; a decision; a real GPU.
//
// The same scenario, seed and steps give the same world, bit for bit. A step
// allocates nothing. The engine (world.go and the files it uses) takes the time
// as an argument; only serving a world to others follows the clock.
//
// A product is added as one literal in model.go, a kind of work in Shapes, a
// fault as a constant in scenario.go with its effect in timeline.go, a scenario
// as a file in scenarios/. A reading that the NVML stand-in is to show also
// needs a field in nvml/standin/world.h and its mirror in shared_linux.go.
package sim

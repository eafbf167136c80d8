// Package host reads what is around the GPUs: processors, memory, disks,
// networks, sensors, mounts, other accelerators.
//
// In: Telegraf's input plugins, each configured in its own TOML; the kernel's
// list of mounts and ports; Prometheus endpoints. Out: samples of the
// catalogue, batch by batch. Never: in the exporter's process; a reader that
// waits for another; a value without a row.
//
// To add a plugin: its import and an entry in plugins, with what its
// measurements mean in translate.go. An endpoint needs no code: its families are
// mapped in the configuration.
package host

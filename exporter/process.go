package exporter

// readProcesses lists who holds the device. A driver that cannot list them
// fails nothing; whether it could is told apart from a device that nobody holds.
func readProcesses(r *reading) error {
	m := r.mem
	m.processes, m.listed = m.processes[:0], false
	dev, ok := r.dev.(ProcessLister)
	if !ok {
		return nil
	}
	err := r.do(callProcesses, func() (err error) {
		m.processes, err = dev.Processes(m.processes)
		return err
	})
	if err != nil {
		m.processes = m.processes[:0]
		if isUnsupported(err) {
			return nil
		}
		return err
	}
	m.listed = true
	return nil
}

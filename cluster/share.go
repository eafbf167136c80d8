package cluster

// NewShare returns the state of a share of the fleet. Of the nodes that
// inventory lists and nobody has heard it expects those that would be heard
// here by whichever of their names they speak. What inventory says of the
// others is kept, as they may be heard here after all.
func NewShare(has func(name string) bool) *State {
	s := NewState()
	s.share = has
	return s
}

// shares says whether a listed node would be heard here under any of its names.
func (s *State) shares(name string) bool {
	if s.share == nil {
		return true
	}
	if !s.share(name) {
		return false
	}
	for _, a := range s.places[name].Aliases {
		if !s.share(a) {
			return false
		}
	}
	return true
}

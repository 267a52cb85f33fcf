package gateway

// Admitted returns the routes that require a credential, as "method path", and whether
// each admits suspended principals.
func (s *Service) Admitted() map[string]bool {
	out := map[string]bool{}
	for _, r := range s.table() {
		if r.need.Caller {
			out[r.method+" "+r.path] = r.need.Recorded
		}
	}
	return out
}

package outcome

// Known adds a session to the cache of chains.
func (r *Recorder) Known(tenant, session string) { r.of(tenant, session) }

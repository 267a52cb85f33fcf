package llmrouter

import (
	"context"
	"encoding/json"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/snapshot"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/usage"
)

// saved is the form of the view llm.usage in a snapshot, with the cache entries for responses
// in the object store. The responses themselves are not part of it.
type saved struct {
	Usage  json.RawMessage `json:"usage"`
	Cached []savedResponse `json:"cached"` // least recently used first
}

type savedResponse struct {
	Key     string           `json:"key"`
	Media   string           `json:"media"`
	Model   string           `json:"model"`
	Until   time.Time        `json:"until"`
	Content contract.Content `json:"content"`
}

// usageSource returns the source of the snapshots of llm.usage. f is the follower of that
// view.
func (s *Service) usageSource(f *follow.Follower) snapshot.Source {
	return snapshot.Source{View: services.ViewUsage, Code: usage.Version, Load: s.loadUsage, Save: func(ctx context.Context) ([]byte, uint64, error) {
		at, err := f.Reach(ctx)
		if err != nil {
			return nil, 0, err
		}
		return s.saveUsage(at)
	}}
}

// saveUsage returns the state of the view and of the cache, and the position of the
// snapshot. The view includes every entry up to at.
func (s *Service) saveUsage(at uint64) ([]byte, uint64, error) {
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	state, err := s.usage.state.Save()
	if err != nil {
		return nil, 0, err
	}
	b, err := json.Marshal(&saved{Usage: state, Cached: s.cache.stored()})
	return b, max(at, s.usage.last), err
}

// loadUsage replaces the empty view and the empty cache with a state that saveUsage
// returned, without cached responses that have expired.
func (s *Service) loadUsage(b []byte) error {
	var d saved
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	s.usage.mu.Lock()
	err := s.usage.state.Load(d.Usage)
	s.usage.mu.Unlock()
	if err != nil {
		return err
	}
	for _, c := range d.Cached {
		if time.Now().Before(c.Until) {
			s.cache.put(&kept{key: c.Key, media: c.Media, model: c.Model, until: c.Until, stored: &c.Content}, s.cacheLimit())
		}
	}
	return nil
}

// LoadSnapshot replaces the empty view with the state in a snapshot. It must not be
// called concurrently with other methods.
func (u *Usage) LoadSnapshot(b []byte) error {
	var d saved
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	return u.state.Load(d.Usage)
}

// stored returns the entries for responses in the object store, the least recently used
// first.
func (c *cache) stored() (out []savedResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for el := c.ages.Back(); el != nil; el = el.Prev() {
		if k := el.Value.(*kept); k.stored != nil {
			out = append(out, savedResponse{k.key, k.media, k.model, k.until, *k.stored})
		}
	}
	return out
}

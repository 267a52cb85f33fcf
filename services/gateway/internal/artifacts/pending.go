package artifacts

import (
	"io"
	"sync"
	"time"
)

// keptFor is how long the bytes of an upload that did not become an artifact count in
// the quota. It is a little longer than the time after which the collector removes them.
const keptFor = 26 * time.Hour

// pending counts the bytes of each tenant that this gateway stored and that are not known
// to be an artifact's: those of uploads in progress, and of uploads whose call did not
// succeed while its request waited. The zero value is empty. It is safe for concurrent use.
type pending struct {
	mu       sync.Mutex
	progress map[string]int64           // by tenant
	ended    map[string]map[int64]int64 // by tenant and hour since 1970
}

// take adds n bytes to the tenant's uploads in progress and reports true. If all bytes that p
// counts for the tenant would exceed room, take adds nothing and reports false.
func (p *pending) take(tenant string, n, room int64, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.progress[tenant] + n
	for hour, bytes := range p.ended[tenant] {
		if time.Duration(now.Unix()-hour*3600)*time.Second > keptFor+time.Hour {
			delete(p.ended[tenant], hour)
			continue
		}
		all += bytes
	}
	if all > room {
		return false
	}
	if p.progress == nil {
		p.progress, p.ended = map[string]int64{}, map[string]map[int64]int64{}
	}
	p.progress[tenant] += n
	return true
}

// end ends an upload of n bytes. Unless it was recorded as an artifact, its bytes count for at
// least keptFor, after which the collector has removed them.
func (p *pending) end(tenant string, n int64, recorded bool, now time.Time) {
	if n == 0 { // nothing was taken
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.progress[tenant] -= n; p.progress[tenant] <= 0 {
		delete(p.progress, tenant)
	}
	if recorded {
		return
	}
	if p.ended[tenant] == nil {
		p.ended[tenant] = map[int64]int64{}
	}
	p.ended[tenant][now.Unix()/3600] += n
}

// counted reads the body of an upload and counts its bytes before they are stored.
type counted struct {
	body io.Reader
	take func(n int64) bool
	n    int64
}

// Read implements io.Reader. It returns errQuota if the tenant has no room for more.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.body.Read(b)
	if n > 0 {
		if !c.take(int64(n)) {
			return 0, errQuota
		}
		c.n += int64(n)
	}
	return n, err
}

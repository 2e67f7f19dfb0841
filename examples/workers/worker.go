// A Hocket worker in Go, with the standard library alone: change work, and keep the rest.
//
//	HOCKET_URL=http://127.0.0.1:7315 HOCKET_TOKEN=hkt_… HOCKET_KINDS=acme.* go run worker.go
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	mathrand "math/rand"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// work is your work. Once ctx is done, the job is cancelled or another worker's.
func work(ctx context.Context, payload json.RawMessage) (any, error) {
	var p struct {
		Ms   float64
		Fail string
		Echo any
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil, err
	}
	pause(ctx, time.Duration(p.Ms*float64(time.Millisecond)))
	if p.Fail != "" {
		return nil, errors.New(p.Fail)
	}
	return p.Echo, nil
}

// which says which hold of a job is meant.
type which struct {
	JobID string `json:"job_id"`
	Fence int64  `json:"fence"`
}

// A hold ends with its context: when it is cancelled or lost, or its lease is over by this machine's own clock.
type hold struct {
	which
	Payload json.RawMessage `json:"payload"`
	LeaseMs int64           `json:"lease_ms"`
	ctx     context.Context
	stop    context.CancelFunc
	overdue *time.Timer
}

type end struct {
	hold *hold
	body map[string]any
}

type state struct {
	which
	State   string `json:"state"`
	Error   any    `json:"error"`
	LeaseMs int64  `json:"lease_ms"`
}

type answer struct {
	Jobs  []*hold `json:"jobs"`
	Holds []state `json:"holds"`
	Ends  []state `json:"ends"`
	Drain bool    `json:"drain"`

	Detail string `json:"detail"` // of a refusal
}

const forever = 1 << 30

var (
	url     = strings.TrimRight(os.Getenv("HOCKET_URL"), "/")
	leaseMs = number("HOCKET_LEASE_MS", 30_000)
	waitMs  = number("HOCKET_WAIT_MS", 20_000)
	room    = number("HOCKET_COUNT", 8)
	lease   = time.Duration(leaseMs) * time.Millisecond
	worker  = "go-" + random() // names this process alone
	mutex   sync.Mutex
	holds   = map[string]*hold{}
	ended   = make(chan end, room)
	changed = make(chan bool, 1)
	// The context of claims ends when the worker drains.
	claiming, drain = signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
)

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func random() string {
	b := make([]byte, 16)
	rand.Read(b)
	return fmt.Sprintf("%x", b)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// post sends a request, and sends it again until the answer is final or ctx is done: then the status is 0.
func post(ctx context.Context, path string, body any, timeout time.Duration, tries int) (int, answer) {
	data, _ := json.Marshal(body)
	wait := 100 * time.Millisecond
	for ; tries > 0 && ctx.Err() == nil; tries-- {
		status, got, after := try(ctx, path, data, timeout)
		if status != 0 {
			return status, got
		}
		if tries > 1 {
			pause(ctx, max(after, wait/2+time.Duration(mathrand.Int63n(int64(wait/2)))))
		}
		wait = min(wait*2, 5*time.Second)
	}
	return 0, answer{}
}

// try sends a request once. Without a whole answer the status is 0: the server may have done its part.
func try(ctx context.Context, path string, data []byte, timeout time.Duration) (int, answer, time.Duration) {
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	request, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/jobs/"+path, bytes.NewReader(data))
	request.Header.Set("Authorization", "Bearer "+os.Getenv("HOCKET_TOKEN"))
	request.Header.Set("Content-Type", "application/json")
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, answer{}, 0
	}
	defer reply.Body.Close()
	later := reply.Header.Get("Retry-After")
	seconds, _ := strconv.Atoi(later)
	if later != "" || reply.StatusCode == 429 || reply.StatusCode >= 500 {
		return 0, answer{}, time.Duration(seconds) * time.Second
	}
	var got answer
	if err := json.NewDecoder(reply.Body).Decode(&got); err != nil && reply.StatusCode == 200 {
		return 0, answer{}, 0
	}
	return reply.StatusCode, got, 0
}

// renew renews holds with one request. Their leases count from before it, so that no clocks are compared.
func renew(some map[string]*hold) bool {
	asked, list := time.Now(), []which{}
	for _, h := range some {
		list = append(list, h.which)
	}
	status, got := post(context.Background(), "renew", map[string]any{"worker": worker, "holds": list}, lease/3, 1)
	for _, s := range got.Holds {
		h := some[s.JobID]
		if s.State == "held" && h.ctx.Err() == nil {
			h.overdue.Reset(time.Until(asked.Add(time.Duration(s.LeaseMs) * time.Millisecond)))
		} else {
			h.stop() // cancel or lost
		}
	}
	if got.Drain {
		drain()
	}
	return status == 200
}

func standing() map[string]*hold {
	mutex.Lock()
	defer mutex.Unlock()
	some := map[string]*hold{}
	for id, h := range holds {
		if h.ctx.Err() == nil {
			some[id] = h
		}
	}
	return some
}

func keepRenewing() {
	for range time.Tick(lease / 3) {
		if some := standing(); len(some) > 0 {
			renew(some)
		}
	}
}

func run(h *hold) {
	body := map[string]any{"job_id": h.JobID, "fence": h.Fence}
	if result, err := work(h.ctx, h.Payload); err == nil {
		body["do"], body["result"] = "complete", result
	} else {
		body["do"], body["error"], body["retry"] = "fail", err.Error(), false
	}
	ended <- end{h, body}
}

// keepEnding sends what has ended meanwhile with one request. A refusal is final: another worker has the job.
func keepEnding() {
	for first := range ended {
		batch, ends := []end{first}, []map[string]any{}
		for len(ended) > 0 {
			batch = append(batch, <-ended)
		}
		needed, over := context.WithCancel(context.Background())
		for _, e := range batch {
			if e.hold.ctx.Err() == nil {
				ends = append(ends, e.body)
			}
		}
		go func() { // over once no hold stands
			for _, e := range batch {
				<-e.hold.ctx.Done()
			}
			over()
		}()
		status, got := 0, answer{}
		if len(ends) > 0 {
			status, got = post(needed, "end", map[string]any{"worker": worker, "ends": ends}, 10*time.Second, forever)
		}
		if status != 0 && status != 200 {
			log.Println("refused:", status, got.Detail)
		}
		for _, s := range got.Ends {
			if s.Error != nil {
				log.Println("refused:", s.JobID, s.Error)
			}
		}
		mutex.Lock()
		for _, e := range batch {
			e.hold.overdue.Stop()
			e.hold.stop()
			delete(holds, e.hold.JobID)
		}
		mutex.Unlock()
		select {
		case changed <- true:
		default:
		}
	}
}

// claim claims up to free jobs. A repeated request has the same claim_id, and so gets the same jobs.
func claim(free int) error {
	asked := time.Now()
	body := map[string]any{"worker": worker, "claim_id": random(), "count": free, "lease_ms": leaseMs, "wait_ms": waitMs}
	body["kinds"] = strings.Split(os.Getenv("HOCKET_KINDS"), ",")
	status, got := post(claiming, "claim", body, time.Duration(waitMs)*time.Millisecond+10*time.Second, forever)
	if status == 0 {
		return nil // The connection has ended with the request, and what was claimed goes back.
	}
	if status != 200 {
		return fmt.Errorf("the server refuses claims with %d: %s", status, got.Detail)
	}
	late, some := time.Since(asked) > lease/3, map[string]*hold{}
	for _, h := range got.Jobs {
		h.ctx, h.stop = context.WithCancel(context.Background())
		left := time.Until(asked.Add(time.Duration(h.LeaseMs) * time.Millisecond))
		if late {
			left = lease
		}
		h.overdue = time.AfterFunc(left, h.stop)
		some[h.JobID] = h
	}
	// Nobody knows how long a late answer was under way, and a renewal is short.
	if late && len(some) > 0 && !renew(some) {
		return nil
	}
	for id, h := range some {
		if h.ctx.Err() == nil {
			mutex.Lock()
			holds[id] = h
			mutex.Unlock()
			go run(h)
		}
	}
	if got.Drain {
		drain()
	}
	return nil
}

func count() int {
	mutex.Lock()
	defer mutex.Unlock()
	return len(holds)
}

func main() {
	var refused error
	go keepRenewing()
	go keepEnding()
	for (claiming.Err() == nil && refused == nil) || count() > 0 {
		free := room - count()
		if claiming.Err() == nil && refused == nil && free > 0 {
			refused = claim(free)
		} else {
			select {
			case <-changed:
			case <-time.After(time.Second):
			}
		}
	}
	post(context.Background(), "goodbye", map[string]any{"worker": worker}, 5*time.Second, 2)
	if refused != nil {
		log.Fatal(refused)
	}
}

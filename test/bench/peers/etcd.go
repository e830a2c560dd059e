// test/bench/peers/etcd.go - clients that lock and release keys of their own
// with concurrency.Mutex of etcd's official Go client.
//
// usage: etcd CLIENTS SECONDS KEYS ENDPOINT
//
// Each client has a connection and a session, which is a lease, of its own, and
// takes a key that no other client wants, over and over.
//
// Prints one line with tabs between: pairs, pairs per second, p50 and p99 of a
// pair in microseconds.  Fails where a key is refused, and where the server
// has not written exactly two revisions for each pair.

package main

import (
	"context"
	"fmt"
	"log"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		log.Fatalf("%q is no positive number", text)
	}
	return n
}

func connect(endpoint string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{endpoint},
		DialTimeout: 10 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// The revision of the store, and how many keys there are
func look(client *clientv3.Client) (int64, int64) {
	answer, err := client.Get(context.Background(), "order:", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		log.Fatal(err)
	}
	return answer.Header.Revision, answer.Count
}

func pair(session *concurrency.Session, key string) {
	mutex := concurrency.NewMutex(session, key)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := mutex.Lock(ctx); err != nil {
		log.Fatalf("%s: %v", key, err)
	}
	if err := mutex.Unlock(ctx); err != nil {
		log.Fatalf("%s: %v", key, err)
	}
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("etcd: ")
	if len(os.Args) != 5 {
		log.Fatal("usage: etcd CLIENTS SECONDS KEYS ENDPOINT")
	}
	clients, seconds, keys, endpoint := number(os.Args[1]), number(os.Args[2]), number(os.Args[3]), os.Args[4]

	var ready, done sync.WaitGroup
	var end time.Time
	start := make(chan bool)
	taken := make([][]time.Duration, clients)
	late := make([]int, clients)
	sessions := make([]*concurrency.Session, clients)
	ready.Add(clients)
	done.Add(clients)
	for i := 0; i < clients; i++ {
		go func(i int) {
			defer done.Done()
			random := rand.New(rand.NewSource(time.Now().UnixNano() + int64(i)))
			session, err := concurrency.NewSession(connect(endpoint))
			if err != nil {
				log.Fatal(err)
			}
			sessions[i] = session
			pair(session, fmt.Sprintf("warm up:%d", i))
			ready.Done()
			<-start
			for {
				from := time.Now()
				if !from.Before(end) {
					break
				}
				pair(session, fmt.Sprintf("order:%d", random.Intn(keys)/clients*clients+i))
				now := time.Now()
				if now.Before(end) {
					taken[i] = append(taken[i], now.Sub(from))
				} else {
					late[i]++
				}
			}
		}(i)
	}
	ready.Wait()
	observer := connect(endpoint)
	defer observer.Close()
	before, _ := look(observer)
	end = time.Now().Add(time.Duration(seconds) * time.Second)
	close(start)
	done.Wait()

	var all []time.Duration
	ended := 0
	for i := range taken {
		all = append(all, taken[i]...)
		ended += late[i]
	}
	after, left := look(observer)
	if after-before != 2*int64(len(all)+ended) || left != 0 {
		log.Fatalf("%d pairs have written %d revisions and left %d keys", len(all)+ended, after-before, left)
	}
	if len(all) == 0 {
		log.Fatal("nobody got anything")
	}
	for _, session := range sessions {
		if err := session.Close(); err != nil {
			log.Fatal(err)
		}
		session.Client().Close()
	}
	sort.Slice(all, func(a, b int) bool { return all[a] < all[b] })
	percentile := func(p float64) int64 { return all[int(float64(len(all)-1)*p)].Microseconds() }
	fmt.Printf("%d\t%.1f\t%d\t%d\n", len(all), float64(len(all))/float64(seconds), percentile(0.5), percentile(0.99))
}

module pontoon.example/network

go 1.21

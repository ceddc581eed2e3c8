// The run-time contract of the C++ interface, one function for each line of it. Without an
// argument all run; with one, those whose names contain it.

#include "contract/connecting.h"
#include "contract/endings.h"
#include "contract/listening.h"
#include "contract/messages.h"
#include "contract/surroundings.h"

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) {#name, name}
static const Test kTests[] = {
    TEST(EstablishedThenWritableUnasked),
    TEST(MessagesKeepTheirBoundaries),
    TEST(UnreliableModesCarryMessagesAndCount),
    TEST(DatagramsKeepTheirBoundariesAndTheirPort),
    TEST(NothingIsLostBeforeTheCallbackIsSet),
    TEST(NoEventFromInsideSetConnectionCallback),
    TEST(TheCallbackCanBeSwappedInsideItself),
    TEST(RefusedConnectionsFailAtOnce),
    TEST(TimeoutIsFollowedByFailed),
    TEST(AFailedConnectCanBeRepeated),
    TEST(MissingModesAreRefusedOnTheCallersThread),
    TEST(ListenFailedWhenThePortIsTaken),
    TEST(ASecondListenSaysAlreadyInListen),
    TEST(StopListenFreesThePortAndConnectionsLiveOn),
    TEST(DestroyingAListenerFreesItsPortBeforeItReturns),
    TEST(BufferFullThenWritable),
    TEST(AllDataAckedComesAfterAQuietTimeAndAgain),
    TEST(StoppingClosesHereAndShutsDownThere),
    TEST(SilenceClosesTheConnection),
    TEST(IdealLengthFollowsThePath),
    TEST(NoCallbackAfterTheOwnerIsDestroyed),
    TEST(AnObjectCanBeDestroyedInItsOwnCallback),
    TEST(CallbacksAreDroppedWithTheirConnection),
    TEST(OneObjectMakesSeveralConnectionsInSeveralModes),
    TEST(TheOverloadsWithoutAnAddressUseTheConfiguration),
    TEST(NamesAndBothFamiliesAreReached),
    TEST(EachAddressOfANameIsTried),
    TEST(FilesArriveAsMessages),
    TEST(FilesWaitUpToALimit),
    TEST(NothingIsSentBeforeTheConnectionStands),
    TEST(SignalsAreToldOnAnOrdinaryThread),
    TEST(TheLogGoesWhereItIsTold),
    TEST(WhatIsAskedForAndNotDoneIsInTheLog),
    TEST(EveryOptionIsAccepted),
    TEST(APinnedServerIsBelievedAndAnotherIsNot),
    TEST(StatisticsCount),
    TEST(APolledContextCallsBackInPollOnly),
    TEST(DestroyedInTheWrongOrderNothingBreaks),
    TEST(TheLastReleaseOfAConnectionMayComeFromAnywhere),
};

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : kTests) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const auto start = std::chrono::steady_clock::now();
    std::printf("%s ... ", test.name);
    std::fflush(stdout);
    test.run();
    const auto took = std::chrono::steady_clock::now() - start;
    std::printf("ok (%lld ms)\n",
                static_cast<long long>(
                    std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
    ++ran;
  }
  std::printf("%d contract tests passed\n", ran);
  return ran > 0 ? 0 : 1;
}
